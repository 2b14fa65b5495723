"""Tiny Qwen 2 checkpoints: biases on q, k and v, windows switched on and off, ties, YaRN."""
from __future__ import annotations

from family_cases.llama import BASE as LLAMA
from family_cases.llama import ORIGINAL
from family_cases.llama import shapes as llama_shapes
from gguf_twin import LLAMA_NAMES, Twin, sizes
from tiny_models import Case, Config, Shape

BASE: Config = {k: v for k, v in LLAMA.items() if k not in ("attention_bias", "mlp_bias")} | {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6, "use_sliding_window": False,
    "sliding_window": 8, "max_window_layers": 1,
}
LISTED = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]


def shapes(c: Config) -> dict[str, Shape]:
    """Llama's, with biases where Qwen 2 has them."""
    out = llama_shapes({**c, "num_key_value_heads": c["num_key_value_heads"] or c["num_attention_heads"]})
    biased = ("q_proj", "k_proj", "v_proj")
    return out | {n.replace("weight", "bias"): s[:1] for n, s in out.items() if n.split(".")[-2] in biased}


PLAIN = Case("window-off", BASE, shapes, lengths=(40,))
WINDOW = PLAIN.set("window", use_sliding_window=True).but(lengths=(9, 60))
YARN = PLAIN.set("yarn", rope_theta=1e6, max_position_embeddings=128, rope_scaling={"type": "yarn", "factor": 4.0, ORIGINAL: 32})
CASES = (
    PLAIN, WINDOW,
    WINDOW.set("window-listed", layer_types=LISTED, use_sliding_window=True).but(lengths=(40,)),
    PLAIN.set("window-null", use_sliding_window=True, sliding_window=None),
    PLAIN.set("bf16-tied", tie_word_embeddings=True, torch_dtype="bfloat16").but(dtype="BF16"),
    PLAIN.set("defaults", num_key_value_heads=None, use_sliding_window=..., sliding_window=..., max_window_layers=...,
              rms_norm_eps=..., rope_theta=..., tie_word_embeddings=..., use_mrope=False),
    YARN.but(lengths=(100,)),
)
GGUF = Twin("qwen2", LLAMA_NAMES, sizes, permuted=False, optional=(".bias",))
GGUF_CASES = (PLAIN, PLAIN.set("tied", tie_word_embeddings=True))
