"""Tiny OLMo 3 checkpoints: windows on three layers of four, and a rotation for each type of layer."""
from __future__ import annotations

from typing import Any

from family_cases.llama import ORIGINAL
from family_cases.olmo2 import BASE as OLMO2
from family_cases.olmo2 import NAMES, shapes
from gguf_twin import Twin, sizes
from tiny_models import Case, Config

YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 32, "attention_factor": 1.3}
BASE: Config = OLMO2 | {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "num_hidden_layers": 5, "sliding_window": 8,
                        "rope_theta": 500000.0, "max_position_embeddings": 128}
LISTED = ["full_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]


def metadata(c: Config) -> dict[str, Any]:
    flags = [kind == "sliding_attention" for kind in c["layer_types"]] if "layer_types" in c else [True, True, True, False, True]
    return sizes(c) | {"attention.sliding_window": c["sliding_window"], "attention.sliding_window_pattern": flags}


PLAIN = Case("window", BASE, shapes, lengths=(9, 60))
SHORT = PLAIN.but(lengths=(40,))
SCALED = PLAIN.set("yarn", rope_scaling=YARN).but(lengths=(100,))
CASES = (
    PLAIN, SCALED,
    SHORT.set("layers-listed", layer_types=LISTED),
    SHORT.set("theta", rope_theta=10000.0),
    SHORT.set("by-layer-type", rope_theta=..., rope_parameters={
        "full_attention": {**YARN, "rope_theta": 20000.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 3000.0}}),
    SHORT.set("bf16-tied", tie_word_embeddings=True, torch_dtype="bfloat16", layer_types=LISTED).but(dtype="BF16"),
    SHORT.set("all-full", layer_types=["full_attention"] * 5, rope_theta=..., attention_bias=True),
)
MUTATIONS = {"rope_theta": ({}, 1e4)}
GGUF = Twin("olmo2", NAMES, metadata, permuted=False)
GGUF_CASES = (PLAIN, PLAIN.set("layers-listed", layer_types=LISTED))
