"""Tiny StableLM checkpoints: rotated shares, residual forms, a norm per head, biases."""
from __future__ import annotations

from typing import Any

import numpy as np
from gguf_names import Converted
from tiny_models import Arrays, Case, Config, Shape

BASE: Config = {
    "architectures": ["StableLmForCausalLM"], "model_type": "stablelm", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 199,
    "max_position_embeddings": 256, "layer_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000,
    "partial_rotary_factor": 0.25, "use_qkv_bias": False, "qk_layernorm": False, "use_parallel_residual": False,
    "tie_word_embeddings": False, "torch_dtype": "float32",
}
LARGE = {"use_parallel_residual": True, "qk_layernorm": True}


def shapes(c: Config) -> dict[str, Shape]:
    """Names and shapes of a StableLM folder."""
    h, ffn, heads, kv = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"], c.get("num_key_value_heads", 32)
    d, vocab = h // heads, c["vocab_size"]
    out: dict[str, Shape] = {"model.embed_tokens.weight": (vocab, h), "model.norm.weight": (h,), "model.norm.bias": (h,)}
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name, shape in {"self_attn.q_proj": (heads * d, h), "self_attn.k_proj": (kv * d, h), "self_attn.v_proj": (kv * d, h),
                            "self_attn.o_proj": (h, h), "mlp.gate_proj": (ffn, h), "mlp.up_proj": (ffn, h),
                            "mlp.down_proj": (h, ffn)}.items():
            out[f"{at}{name}.weight"] = shape
            if c.get("use_qkv_bias") and name.split(".")[1] in ("q_proj", "k_proj", "v_proj"):
                out[f"{at}{name}.bias"] = shape[:1]
        for name in ("input_layernorm", *(() if c.get("use_parallel_residual") else ("post_attention_layernorm",))):
            out |= {f"{at}{name}.weight": (h,), f"{at}{name}.bias": (h,)}
        if c.get("qk_layernorm"):
            out |= {f"{at}self_attn.{n}_layernorm.norms.{j}.weight": (d,) for n, m in (("q", heads), ("k", kv)) for j in range(m)}
    return out if c.get("tie_word_embeddings") else out | {"lm_head.weight": (vocab, h)}


PLAIN = Case("f32", BASE, shapes)
SHORT = PLAIN.but(lengths=(40,))
CASES = (
    PLAIN,
    SHORT.set("bf16-shards", torch_dtype="bfloat16").but(dtype="BF16", shards=2),
    SHORT.set("bare-config", layer_norm_eps=..., hidden_act=..., rope_theta=..., partial_rotary_factor=..., torch_dtype=...,
              use_qkv_bias=..., qk_layernorm=..., use_parallel_residual=..., tie_word_embeddings=...),
    SHORT.set("key-heads-absent", hidden_size=256, num_attention_heads=32, num_key_value_heads=..., intermediate_size=32,
              partial_rotary_factor=0.5),
    SHORT.set("large", **LARGE),
    SHORT.set("parallel", use_parallel_residual=True),
    SHORT.set("head-norms", qk_layernorm=True, partial_rotary_factor=0.5),
    SHORT.set("biases", use_qkv_bias=True),
    SHORT.set("quarter-of-80", hidden_size=160, num_attention_heads=2),
    SHORT.set("whole-head", partial_rotary_factor=1.0, rope_theta=500),
    SHORT.set("parameters", rope_theta=..., partial_rotary_factor=..., rope_parameters={
        "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}),
    SHORT.set("tied", tie_word_embeddings=True),
    SHORT.set("act-gelu", hidden_act="gelu"),
    SHORT.set("large-eps", **LARGE, layer_norm_eps=0.5),
    PLAIN.set("linear", rope_scaling={"type": "linear", "factor": 4.0}, max_position_embeddings=64),
)


MUTATIONS = {"partial_rotary_factor": ({}, 0.5),
             # two frequencies are the same by either length
             "original_max_position_embeddings": ({"partial_rotary_factor": 1.0, "rope_scaling": {
                 "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}, 64)}


# --- the same weights as llama.cpp's converter writes them

def _stacked(case: Case) -> Arrays:
    """The norms of a layer's heads as one tensor."""
    c, tensors = case.config, case.tensors()
    out = {n: x for n, x in tensors.items() if ".norms." not in n}
    for i in range(c["num_hidden_layers"] if c["qk_layernorm"] else 0):
        for n, heads in (("q", c["num_attention_heads"]), ("k", c["num_key_value_heads"])):
            stem = f"model.layers.{i}.self_attn.{n}_layernorm"
            out[f"{stem}.weight"] = np.stack([tensors[f"{stem}.norms.{j}.weight"] for j in range(heads)])
    return out


def _metadata(c: Config) -> dict[str, Any]:
    d = c["hidden_size"] // c["num_attention_heads"]
    return {"context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"],
            "block_count": c["num_hidden_layers"], "feed_forward_length": c["intermediate_size"],
            "rope.dimension_count": int(c["partial_rotary_factor"] * d), "attention.head_count": c["num_attention_heads"],
            "attention.head_count_kv": c["num_key_value_heads"], "attention.layer_norm_epsilon": c["layer_norm_eps"],
            "rope.freq_base": float(c["rope_theta"])}


NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
         "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
GGUF = Converted("stablelm", NAMES, _metadata, permuted=False, outside=OUTSIDE, changed=_stacked)
GGUF_CASES = (SHORT.set("head-norms", qk_layernorm=True, partial_rotary_factor=0.5), SHORT.set("large", **LARGE),
              SHORT.set("biases", use_qkv_bias=True, layer_norm_eps=0.5),
              SHORT.set("quarter-of-80", hidden_size=160, num_attention_heads=2))
