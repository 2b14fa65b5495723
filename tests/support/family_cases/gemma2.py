"""Tiny Gemma 2 checkpoints: both caps given, absent and off, windows by rule and by list, the query scalar."""
from __future__ import annotations

from typing import Any

from family_cases import gemma
from gguf_twin import LLAMA_NAMES, Twin
from tiny_models import Case, Config, Shape

BASE: Config = {k: v for k, v in gemma.BASE.items() if k != "hidden_act"} | {
    "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 32, "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 12.0, "sliding_window": 8,
}
NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
FULL, SLIDES = "full_attention", "sliding_attention"


def shapes(c: Config) -> dict[str, Shape]:
    """The layout of Gemma 2."""
    return gemma.gemma_shapes(c, *NORMS)


PLAIN = Case("f32", BASE, shapes)
SHORT = PLAIN.but(lengths=(40,))
CASES = (
    PLAIN.but(lengths=(8, 9, 100)),
    SHORT.set("bf16", torch_dtype="bfloat16").but(dtype="BF16"),
    SHORT.set("caps-off", attn_logit_softcapping=None, final_logit_softcapping=None),
    SHORT.set("bare-config", attn_logit_softcapping=..., final_logit_softcapping=..., sliding_window=...,
              query_pre_attn_scalar=..., hidden_activation=..., hidden_act=..., rms_norm_eps=..., rope_theta=...),
    SHORT.set("layer-types", layer_types=[FULL, SLIDES, SLIDES, FULL]),
    SHORT.set("window-of-two", sliding_window=2),
    SHORT.set("heads-as-scalar", query_pre_attn_scalar=18, num_key_value_heads=1),
    SHORT.set("untied", tie_word_embeddings=False).but(extra=gemma.HEAD),
    SHORT.set("act-erf", hidden_activation="gelu", hidden_act="silu"),
    SHORT.set("attention-bias", attention_bias=True),
    PLAIN.set("yarn", rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
)


MUTATIONS = {"sliding_window_size": ({}, 16)}


def gguf_keys(c: Config) -> dict[str, Any]:
    """The keys of a converted Gemma 2; the query scalar is not among them."""
    return gemma.gguf_keys(c) | {
        "attention.sliding_window": c["sliding_window"], "attn_logit_softcapping": c["attn_logit_softcapping"],
        "final_logit_softcapping": c["final_logit_softcapping"]}


NAMES = LLAMA_NAMES | {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                       "post_feedforward_layernorm": "post_ffw_norm"}
GGUF = Twin("gemma2", NAMES, gguf_keys, permuted=False, norm_offset=1.0)
SAME = PLAIN.set("f32", query_pre_attn_scalar=16, rms_norm_eps=0.05)
# llama.cpp knows the 27B model by its 46 layers, and that its scores are scaled by width / heads
GGUF_CASES = (SAME, SAME.set("as-27b", num_hidden_layers=46, query_pre_attn_scalar=18))
