"""Tiny Phi 3 checkpoints: fused projections, rotated shares, windows, and longrope before, across and past its switch."""
from __future__ import annotations

from typing import Any

import numpy as np
from gguf_names import Converted
from tiny_models import Arrays, Case, Config, Shape

ORIGINAL = "original_max_position_embeddings"
BASE: Config = {
    "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 199,
    "max_position_embeddings": 256, ORIGINAL: 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None,
    "hidden_act": "silu", "sliding_window": None, "tie_word_embeddings": False, "attention_bias": False,
    "pad_token_id": 0, "torch_dtype": "float32",
}
FACTORS: Config = {"short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.8, 2.0], "long_factor": [1.0, 1.5, 2, 3, 4, 6, 8, 10]}
SHARE: Config = {"short_factor": [1, 1.05, 1.1, 1.2, 1.5, 1.8], "long_factor": [1.0, 1.5, 2, 4, 6, 10]}


def shapes(c: Config) -> dict[str, Shape]:
    """Names and shapes of a Phi 3 folder."""
    h, ffn, heads, vocab = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"], c["vocab_size"]
    d = c.get("head_dim", h // heads)
    kv = (c.get("num_key_value_heads") or heads) * d
    out: dict[str, Shape] = {"model.embed_tokens.weight": (vocab, h), "model.norm.weight": (h,)}
    for i in range(c["num_hidden_layers"]):
        for name, shape in {"self_attn.qkv_proj": (heads * d + 2 * kv, h), "self_attn.o_proj": (h, heads * d),
                            "mlp.gate_up_proj": (2 * ffn, h), "mlp.down_proj": (h, ffn), "input_layernorm": (h,),
                            "post_attention_layernorm": (h,)}.items():
            out[f"model.layers.{i}.{name}.weight"] = shape
    return out if c.get("tie_word_embeddings") else out | {"lm_head.weight": (vocab, h)}


def _long(name: str, record: Config, original: int = 32, **more: Any) -> Case:
    """The three prompts stay below the original length, cross it while generating, and begin beyond it."""
    lengths = (original // 4, original - 7, original + 40)
    return PLAIN.set(name, rope_scaling=record, **{ORIGINAL: original}, **more).but(by_length=True, lengths=lengths)


PLAIN = Case("f32", BASE, shapes)
SHORT = PLAIN.but(lengths=(40,))
CASES = (
    PLAIN,
    SHORT.set("bf16-shards", torch_dtype="bfloat16").but(dtype="BF16", shards=2),
    SHORT.set("bare-config", max_position_embeddings=..., rms_norm_eps=..., hidden_act=..., rope_theta=..., rope_scaling=...,
              sliding_window=..., tie_word_embeddings=..., attention_bias=..., num_key_value_heads=..., torch_dtype=...,
              **{ORIGINAL: ...}),
    SHORT.set("key-heads-null", num_key_value_heads=None, rope_theta=500),
    SHORT.set("wide-heads", head_dim=32, num_key_value_heads=1),
    SHORT.set("share", partial_rotary_factor=0.75),
    SHORT.set("half-of-32", partial_rotary_factor=0.5, hidden_size=128),
    SHORT.set("share-in-record", partial_rotary_factor=0.25, rope_theta=..., rope_parameters={
        "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}),
    PLAIN.set("window", sliding_window=8).but(lengths=(6, 60)),
    SHORT.set("tied", tie_word_embeddings=True, mlp_bias=False, lm_head_bias=False, full_attn_mod=1, interpolate_factor=1),
    SHORT.set("large-eps", rms_norm_eps=0.5, hidden_act="gelu"),
    _long("longrope", {"type": "longrope", **FACTORS}),
    _long("longrope-parameters", None, rope_theta=..., rope_parameters={
        "rope_type": "longrope", "rope_theta": 500.0, ORIGINAL: 32, "partial_rotary_factor": 0.75, **SHARE}),
    _long("longrope-share", {"type": "longrope", **SHARE}, partial_rotary_factor=0.75, num_key_value_heads=4),
    _long("longrope-window", {"rope_type": "longrope", **FACTORS}, sliding_window=9),
    _long("longrope-named-yarn", {"type": "yarn", "attention_factor": 1.5, **FACTORS}),
    _long("longrope-factor", {"type": "longrope", "factor": 3.0, **FACTORS}, original=16),
    _long("longrope-bf16", {"type": "longrope", **FACTORS}, torch_dtype="bfloat16").but(dtype="BF16"),
    # a text never reaches the long factors: they fold to a table, the magnitude of max over original stays
    PLAIN.set("longrope-short", rope_scaling={"type": "longrope", **FACTORS}, **{ORIGINAL: 256}),
)
LONG = {"rope_scaling": {"type": "longrope", **FACTORS}, ORIGINAL: 32}
MUTATIONS: dict[str, tuple[Config, Any]] = {
    "head_dim": ({}, 32), "num_key_value_heads": ({}, 1), "rms_norm_eps": ({}, 0.3), "sliding_window": ({}, 8),
    "partial_rotary_factor": ({}, 0.5), ORIGINAL: (LONG, 16), "rope_scaling": ({ORIGINAL: 32}, LONG["rope_scaling"]),
    "rope_parameters": ({}, {"rope_type": "default", "rope_theta": 5e5}),
}


# --- the same weights as llama.cpp's converter writes them

def _metadata(c: Config) -> dict[str, Any]:
    """The converter states no scaling type; the factors are tensors, the magnitude a key."""
    longest, original, heads = c["max_position_embeddings"], c[ORIGINAL], c["num_attention_heads"]
    magnitude = np.sqrt(1 + np.log(longest / original) / np.log(original))
    scaled = {"rope.scaling.original_context_length": original, "rope.scaling.attn_factor": float(magnitude)}
    return {"context_length": longest, "embedding_length": c["hidden_size"], "feed_forward_length": c["intermediate_size"],
            "block_count": c["num_hidden_layers"], "attention.head_count": heads,
            "attention.head_count_kv": c["num_key_value_heads"], "attention.layer_norm_rms_epsilon": c["rms_norm_eps"],
            "rope.dimension_count": int(c.get("partial_rotary_factor", 1.0) * c["hidden_size"]) // heads,
            "rope.freq_base": c["rope_theta"], **(scaled if c["rope_scaling"] else {})}


def _factored(case: Case) -> Arrays:
    rope = case.config["rope_scaling"] or {}
    return case.tensors() | {f"rope_factors_{n}.weight": np.array(rope[f"{n}_factor"], np.float32)
                             for n in ("short", "long") if rope}


def _rolled(case: Case, tensors: Arrays) -> Arrays:
    """Rows of q, k and v, and of gate and up, in another order."""
    return {n: np.roll(x, 32, axis=0) if "qkv_proj" in n or "gate_up" in n else x for n, x in tensors.items()}


NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.qkv_proj": "attn_qkv",
         "self_attn.o_proj": "attn_output", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
           "rope_factors_short": "rope_factors_short", "rope_factors_long": "rope_factors_long"}
GGUF = Converted("phi3", NAMES, _metadata, permuted=False, outside=OUTSIDE, changed=_factored, broken=_rolled)
WITHIN = SHORT.set("within", rope_scaling={"type": "longrope", **FACTORS})
BEYOND = WITHIN.set("beyond", **{ORIGINAL: 32})
GGUF_CASES = (SHORT, WITHIN, BEYOND, BEYOND.set("share", rope_scaling={"type": "longrope", **SHARE}, partial_rotary_factor=0.75,
                                                tie_word_embeddings=True))
