"""A tiny checkpoint, a llama unless told otherwise, as a GGUF whose matrices are block-quantised, and the values they mean."""
from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from gguf_twin import Twin
from llamacpp_files import LLAMA_TWIN
from random_blocks import random_blocks
from tiny_models import Arrays, Case

STD = 0.06  # of random blocks: with rows of 256 values, what 0.12 is with rows of 64
QUANTISES = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4")  # the gguf package itself
MIXED = {"token_embd": "Q8_0", "attn_q": "Q4_0", "attn_k": "Q4_0", "attn_v": "Q4_0", "attn_output": "Q8_0",
         "ffn_gate": "Q4_1", "ffn_up": "Q4_1", "ffn_down": "Q5_0", "output": "Q4_1"}


def kind_of(name: str, kinds: Mapping[str, str]) -> str:
    """The first entry of `kinds` that is a part of the tensor's name decides; F32 without one."""
    return next((k for part, k in kinds.items() if part in name), "F32")


def stored(case: Case, kinds: Mapping[str, str], spread: float = 1.0, twin: Twin = LLAMA_TWIN,
           ) -> dict[str, tuple[str, np.ndarray]]:
    """Per tensor its type and the array that the file holds: the case's matrices times `spread`, rounded by the gguf package,
    or random blocks of a kind that it cannot make; vectors stay F32."""
    out = {}
    for name, x in twin.tensors(case).items():
        kind = kind_of(name, kinds) if x.ndim > 1 else "F32"
        if kind == "F32":
            out[name] = kind, x * np.float32(spread if x.ndim > 1 else 1)
        elif kind in QUANTISES:
            out[name] = kind, gguf.quantize(x * np.float32(spread), gguf.GGMLQuantizationType[kind])
        else:
            rows = random_blocks(kind.lower(), x.size // x.shape[-1], x.shape[-1], zlib.crc32(name.encode()), STD)
            out[name] = kind, rows.reshape(*x.shape[:-1], -1)
    return out


def meant(tensors: Mapping[str, tuple[str, np.ndarray]]) -> Arrays:
    """The f32 values of the tensors, by the gguf package."""
    return {n: x if kind == "F32" else gguf.dequantize(x, gguf.GGMLQuantizationType[kind]) for n, (kind, x) in tensors.items()}


def write_stored(path: Path, case: Case, tensors: Mapping[str, tuple[str, np.ndarray]], twin: Twin = LLAMA_TWIN) -> Path:
    """The case's file with these tensors."""
    writer = gguf.GGUFWriter(path, twin.arch)
    writer.add_tokenizer_model("none")
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, bool: writer.add_bool}
    for key, value in (twin.metadata(case.config) | {"vocab_size": case.config["vocab_size"]}).items():
        add[type(value)](f"{twin.arch}.{key}", value)
    for name, (kind, x) in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(x), raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_quantised(path: Path, case: Case, kinds: Mapping[str, str]) -> Path:
    """The case's own weights in these types."""
    return write_stored(path, case, stored(case, kinds))
