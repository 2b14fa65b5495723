"""Tiny Command R7B checkpoints: sliding layers that rotate, full layers without positions, in every spelling."""
from __future__ import annotations

from typing import Any

from family_cases import cohere
from gguf_names import Converted
from tiny_models import Case, Config

FULL, SLIDES = "full_attention", "sliding_attention"
BASE: Config = {k: v for k, v in cohere.BASE.items() if k != "use_qk_norm"} | {
    "architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2", "sliding_window": 8, "num_hidden_layers": 5}

PLAIN = Case("f32", BASE, cohere.shapes, lengths=(6, 60))
SHORT = PLAIN.but(lengths=(40,))
CASES = (
    PLAIN,
    SHORT.set("bf16-shards", torch_dtype="bfloat16").but(dtype="BF16", shards=2),
    SHORT.set("bare-config", layer_norm_eps=..., logit_scale=..., hidden_act=..., rope_theta=..., sliding_window=...,
              attention_bias=..., max_position_embeddings=..., num_key_value_heads=..., torch_dtype=...),
    SHORT.set("published-keys", head_dim=16, layer_switch=4, sliding_window_pattern=4, rotary_pct=1.0, use_qk_norm=False,
              order_of_interleaved_layers="local_attn_first", position_embedding_type="rope_gptj", use_parallel_block=True,
              use_embedding_sharing=True, use_gated_activation=True, cache_implementation="hybrid"),
    SHORT.set("pattern-of-two", sliding_window_pattern=2, attention_bias=True),
    SHORT.set("layers-listed", layer_types=[FULL, SLIDES, SLIDES, FULL, SLIDES]),
    SHORT.set("all-full", layer_types=[FULL] * 5),
    SHORT.set("untied", tie_word_embeddings=False).but(extra=cohere.HEAD),
    SHORT.set("linear", rope_scaling={"rope_type": "linear", "factor": 4.0}, num_key_value_heads=4),
)
MUTATIONS: dict[str, tuple[Config, Any]] = {
    "head_dim": ({}, 32), "num_key_value_heads": ({}, 1), "layer_norm_eps": ({}, 0.3), "layer_switch": ({}, 3),
    "sliding_window": ({}, 5), "sliding_window_pattern": ({}, 3), "layer_types": ({}, [FULL] * 5)}


# --- the same weights as llama.cpp's converter writes them

def _metadata(c: Config) -> dict[str, Any]:
    return cohere.metadata(c) | {"attention.sliding_window": c["sliding_window"]}


GGUF = Converted("cohere2", cohere.NAMES, _metadata, permuted=False, outside=cohere.OUTSIDE)
GGUF_CASES = (SHORT,)
