"""Tiny Granite checkpoints: the four scalars, each away from 1, and each left out."""
from __future__ import annotations

from typing import Any

from family_cases.llama import BASE as LLAMA
from family_cases.llama import shapes
from gguf_twin import LLAMA_NAMES, Twin, sizes
from tiny_models import Case, Config

SCALARS: Config = {"embedding_multiplier": 12.0, "attention_multiplier": 0.078125, "residual_multiplier": 0.22,
                   "logits_scaling": 8.0}
BASE: Config = LLAMA | SCALARS | {"architectures": ["GraniteForCausalLM"], "model_type": "granite"}


def metadata(c: Config) -> dict[str, Any]:
    names = {"embedding_multiplier": "embedding_scale", "attention_multiplier": "attention.scale",
             "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale"}
    return sizes(c) | {theirs: c[ours] for ours, theirs in names.items() if ours in c}


PLAIN = Case("scalars", BASE, shapes, lengths=(12, 60))
SHORT = PLAIN.but(lengths=(40,))
CASES = (
    PLAIN,
    SHORT.set("no-scalars", **dict.fromkeys(SCALARS, ...)),
    SHORT.set("whole-scalars", embedding_multiplier=3, attention_multiplier=1, residual_multiplier=2, logits_scaling=5),
    SHORT.set("biases", attention_bias=True, mlp_bias=True),
    SHORT.set("bf16-tied", tie_word_embeddings=True, torch_dtype="bfloat16", num_key_value_heads=...).but(dtype="BF16"),
)
GGUF = Twin("granite", LLAMA_NAMES, metadata, permuted=True)
GGUF_CASES = (PLAIN, PLAIN.set("biases", attention_bias=True, mlp_bias=True), PLAIN.set("tied", tie_word_embeddings=True))
