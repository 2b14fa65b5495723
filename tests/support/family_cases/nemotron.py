"""Tiny Nemotron checkpoints: norms of 1 + weight with a bias, rotated shares, squared ReLU, biases."""
from __future__ import annotations

from typing import Any

import numpy as np
from gguf_names import Converted
from tiny_models import Arrays, Case, Config, Shape

BASE: Config = {
    "architectures": ["NemotronForCausalLM"], "model_type": "nemotron", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 199,
    "max_position_embeddings": 256, "norm_eps": 1e-5, "hidden_act": "relu2", "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def shapes(c: Config) -> dict[str, Shape]:
    """Names and shapes of a Nemotron folder."""
    h, ffn, heads, kv, vocab = (c[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
                                               "vocab_size"))
    d = c.get("head_dim") or h // heads
    out: dict[str, Shape] = {"model.embed_tokens.weight": (vocab, h), "model.norm.weight": (h,), "model.norm.bias": (h,)}
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name, shape in {"self_attn.q_proj": (heads * d, h), "self_attn.k_proj": (kv * d, h), "self_attn.v_proj": (kv * d, h),
                            "self_attn.o_proj": (h, heads * d), "mlp.up_proj": (ffn, h), "mlp.down_proj": (h, ffn)}.items():
            out[f"{at}{name}.weight"] = shape
            if c.get("attention_bias" if "attn" in name else "mlp_bias"):
                out[f"{at}{name}.bias"] = shape[:1]
        for name in ("input_layernorm", "post_attention_layernorm"):
            out |= {f"{at}{name}.weight": (h,), f"{at}{name}.bias": (h,)}
    return out if c.get("tie_word_embeddings") else out | {"lm_head.weight": (vocab, h)}


PLAIN = Case("f32", BASE, shapes)
SHORT = PLAIN.but(lengths=(40,))
CASES = (
    PLAIN,
    SHORT.set("bf16-shards", torch_dtype="bfloat16").but(dtype="BF16", shards=2),
    SHORT.set("bare-config", norm_eps=..., hidden_act=..., rope_theta=..., partial_rotary_factor=..., attention_bias=...,
              mlp_bias=..., tie_word_embeddings=..., max_position_embeddings=..., torch_dtype=...),
    SHORT.set("biases", attention_bias=True, mlp_bias=True),
    SHORT.set("head-dim-null", head_dim=None, num_key_value_heads=1),
    SHORT.set("wide-heads", head_dim=32, num_key_value_heads=4),
    SHORT.set("whole-head", partial_rotary_factor=1.0, rope_theta=500),
    SHORT.set("parameters", rope_theta=..., partial_rotary_factor=..., rope_parameters={
        "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25}),
    SHORT.set("tied", tie_word_embeddings=True),
    SHORT.set("act-silu", hidden_act="silu"),
    SHORT.set("large-eps", norm_eps=0.5),
    PLAIN.set("linear", rope_scaling={"type": "linear", "factor": 4.0}, max_position_embeddings=64),
)
MUTATIONS: dict[str, tuple[Config, Any]] = {"head_dim": ({}, 32), "num_key_value_heads": ({}, 1), "norm_eps": ({}, 0.3),
                                            "partial_rotary_factor": ({}, 0.25)}


# --- the same weights as llama.cpp's converter writes them

def _shifted(case: Case) -> Arrays:
    """1 added to the weight of every norm."""
    return {n: x + np.float32(1) if n.endswith("norm.weight") else x for n, x in case.tensors().items()}


def _metadata(c: Config) -> dict[str, Any]:
    scaling = c.get("rope_scaling") or {}
    heads = c["num_attention_heads"]
    return {"context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"],
            "block_count": c["num_hidden_layers"], "feed_forward_length": c["intermediate_size"], "attention.head_count": heads,
            "attention.head_count_kv": c["num_key_value_heads"], "attention.layer_norm_epsilon": c["norm_eps"],
            "rope.freq_base": c["rope_theta"], "rope.scaling.type": "linear" if scaling else "none",
            "rope.dimension_count": int(c["partial_rotary_factor"] * c["hidden_size"]) // heads,
            **({"rope.scaling.factor": scaling["factor"]} if scaling else {})}


NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
GGUF = Converted("nemotron", NAMES, _metadata, permuted=False, outside=OUTSIDE, changed=_shifted)
GGUF_CASES = (SHORT, SHORT.set("biases", attention_bias=True, mlp_bias=True, norm_eps=0.5),
              SHORT.set("linear", rope_scaling={"type": "linear", "factor": 4.0}))
