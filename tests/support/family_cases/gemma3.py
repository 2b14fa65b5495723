"""Tiny Gemma 3 checkpoints: a rotation for each layer type in every spelling, patterns of sliding layers."""
from __future__ import annotations

from typing import Any

from family_cases import gemma, gemma2
from family_cases.gemma2 import FULL, SLIDES
from gguf_twin import Twin
from tiny_models import Case, Config, Shape

BASE: Config = {k: v for k, v in gemma2.BASE.items() if k != "hidden_act"} | {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 7,
    "attn_logit_softcapping": None, "final_logit_softcapping": None, "rope_theta": 1e6, "rope_local_base_freq": 10000.0,
    "rope_scaling": None, "sliding_window_pattern": 3,
}


def shapes(c: Config) -> dict[str, Shape]:
    """The layout of Gemma 3."""
    heads = {f"model.layers.{i}.{name}.weight": (c.get("head_dim", 256),)
             for i in range(c["num_hidden_layers"]) for name in ("self_attn.q_norm", "self_attn.k_norm")}
    return gemma.gemma_shapes(c, *gemma2.NORMS) | heads


def _rope(name: str, full: Config, sliding: Config, **more: Any) -> Case:
    records = {k: v for k, v in ((FULL, full), (SLIDES, sliding)) if v != {}}
    return PLAIN.set(name, rope_theta=..., rope_local_base_freq=..., rope_scaling=..., rope_parameters=records, **more)


PLAIN = Case("f32", BASE, shapes)
SHORT = PLAIN.but(lengths=(40,))
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
CASES = (
    PLAIN.but(lengths=(8, 9, 100)),
    SHORT.set("bf16", torch_dtype="bfloat16").but(dtype="BF16"),
    SHORT.set("bare-config", rope_theta=..., rope_local_base_freq=..., rope_scaling=..., sliding_window_pattern=...,
              query_pre_attn_scalar=..., attn_logit_softcapping=..., final_logit_softcapping=..., hidden_activation=...,
              max_position_embeddings=...),
    PLAIN.set("linear", rope_scaling={"rope_type": "linear", "factor": 8.0}),
    PLAIN.set("llama3", rope_scaling=LLAMA3, rope_theta=5e5),
    PLAIN.set("yarn", rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
    _rope("parameters", {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5}, {"rope_type": "default", "rope_theta": 2e4},
          layer_types=[SLIDES, FULL, SLIDES, SLIDES, FULL, SLIDES, FULL], sliding_window_pattern=..., _sliding_window_pattern=3),
    _rope("parameters-of-full-only", {"type": "linear", "factor": 4.0}, {}, layer_types=[FULL, SLIDES] * 3 + [SLIDES]),
    SHORT.set("pattern-of-one", sliding_window_pattern=1),
    SHORT.set("final-cap", final_logit_softcapping=12.0),
    SHORT.set("untied", tie_word_embeddings=False).but(extra=gemma.HEAD),
    SHORT.set("attention-bias", attention_bias=True, num_key_value_heads=1),
)


MUTATIONS = {"sliding_window_pattern": ({}, 2)}


def gguf_keys(c: Config) -> dict[str, Any]:
    """The keys of a converted Gemma 3; neither the local base nor the pattern is among them."""
    keys = gemma.gguf_keys(c) | {"attention.sliding_window": c["sliding_window"], "rope.freq_base": float(c["rope_theta"])}
    if c["rope_scaling"]:
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": c["rope_scaling"]["factor"]}
    return keys | ({"final_logit_softcapping": c["final_logit_softcapping"]} if c["final_logit_softcapping"] else {})


NAMES = gemma2.NAMES | {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
GGUF = Twin("gemma3", NAMES, gguf_keys, permuted=False, norm_offset=1.0)
SAME = PLAIN.set("f32", sliding_window_pattern=6, query_pre_attn_scalar=16, rms_norm_eps=0.05, final_logit_softcapping=12.0,
                 rope_scaling={"rope_type": "linear", "factor": 8.0})
# llama.cpp knows the 27B model by its 62 layers, and that its scores are scaled by width / heads
GGUF_CASES = (SAME, SAME.set("unscaled", rope_scaling=None, final_logit_softcapping=None),
              SAME.set("own-head", tie_word_embeddings=False).but(extra=gemma.HEAD),
              SAME.set("as-27b", num_hidden_layers=62, query_pre_attn_scalar=18))
