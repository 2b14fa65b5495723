"""Tiny OLMo 1 checkpoints: norms without parameters, clipping, biases."""
from __future__ import annotations

from typing import Any

from family_cases.llama import BASE as LLAMA
from family_cases.llama import shapes as llama_shapes
from gguf_twin import LLAMA_NAMES, Twin, sizes
from tiny_models import Case, Config, Shape

BASE: Config = {k: v for k, v in LLAMA.items() if k not in ("rms_norm_eps", "mlp_bias")} | {
    "architectures": ["OlmoForCausalLM"], "model_type": "olmo", "clip_qkv": 1.5}


def shapes(c: Config) -> dict[str, Shape]:
    """Llama's without norms."""
    return {n: s for n, s in llama_shapes(c).items() if "norm" not in n}


def metadata(c: Config) -> dict[str, Any]:
    out = {k: v for k, v in sizes({**c, "rms_norm_eps": 0}).items() if not k.endswith("rms_epsilon")}
    return out | {"attention.layer_norm_epsilon": 1e-5} | ({"attention.clamp_kqv": c["clip_qkv"]} if c.get("clip_qkv") else {})


PLAIN = Case("clipped", BASE, shapes, lengths=(12, 60))
SHORT = PLAIN.but(lengths=(40,))
CASES = (
    PLAIN,
    SHORT.set("clip-null", clip_qkv=None),
    SHORT.set("attention-bias", attention_bias=True),
    SHORT.set("bf16-tied", tie_word_embeddings=True, torch_dtype="bfloat16").but(dtype="BF16"),
    SHORT.set("defaults", clip_qkv=..., num_key_value_heads=..., rope_theta=..., attention_bias=..., tie_word_embeddings=...),
)
MUTATIONS = {"clip_qkv": ({}, 0.8)}
GGUF = Twin("olmo", LLAMA_NAMES, metadata, permuted=True)
GGUF_CASES = (PLAIN, PLAIN.set("unclipped", clip_qkv=None), PLAIN.set("tied", tie_word_embeddings=True))
