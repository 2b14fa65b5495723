"""Writes a GGUF of a 7B model's shape (about 4 GB) with made-up values, to measure what a compile takes.

`python examples/synthetic_gguf.py OUT.gguf [LAYERS [WIDTH]]`, then `uaii-compile OUT.gguf -o DIR`. Every tensor repeats a few
random rows, so writing takes seconds; each begins with another of them, as onnxruntime keeps equal matrices once when it loads.
"""
from __future__ import annotations

import sys

import gguf
import numpy as np
from gguf.quants import quantize

LAYERS, WIDTH, HEAD, VOCAB, ROWS = 32, 4096, 128, 32000, 256
Q4 = gguf.GGMLQuantizationType.Q4_0


def main(out: str, layers: int = LAYERS, width: int = WIDTH) -> None:
    """Llama 2 7B's tensors in Q4_0, norms in F32, no tokenizer; a width of 4096/8 has an eighth of every size."""
    rng, ffn, heads = np.random.default_rng(0), 43 * width // 16, width // HEAD
    writer = gguf.GGUFWriter(out, "llama")
    for key, value in (("block_count", layers), ("context_length", 4096), ("embedding_length", width),
                       ("feed_forward_length", ffn), ("attention.head_count", heads), ("attention.head_count_kv", heads),
                       ("vocab_size", VOCAB), ("rope.dimension_count", HEAD)):
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_string("tokenizer.ggml.model", "none")
    some = {k: quantize(rng.normal(0, 0.02, (ROWS, k)).astype(np.float32), Q4) for k in (width, ffn)}
    sizes = {"attn_q": (width, width), "attn_k": (width, width), "attn_v": (width, width), "attn_output": (width, width),
             "ffn_gate": (ffn, width), "ffn_up": (ffn, width), "ffn_down": (width, ffn)}
    shapes = {"token_embd": (VOCAB, width), "output": (VOCAB, width)}
    shapes |= {f"blk.{i}.{name}": shape for i in range(layers) for name, shape in sizes.items()}
    for name, (rows, inner) in shapes.items():
        row = some[inner].shape[1]
        writer.add_tensor_info(f"{name}.weight", (rows, row), np.dtype(np.uint8), rows * row, Q4)
    for name in ("output_norm", *(f"blk.{i}.{n}" for i in range(layers) for n in ("attn_norm", "ffn_norm"))):
        writer.add_tensor_info(f"{name}.weight", (width,), np.dtype(np.float32), 4 * width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for i, (rows, inner) in enumerate(shapes.values()):
        writer.write_tensor_data(np.resize(np.roll(some[inner], i, axis=0), (rows, some[inner].shape[1])))
    for _ in range(1 + 2 * layers):
        writer.write_tensor_data(np.ones(width, np.float32))
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) < 2 or not sys.argv[1].endswith(".gguf"):
        raise SystemExit(__doc__)
    main(sys.argv[1], *map(int, sys.argv[2:4]))
