"""Tiny Phi checkpoints: rotated shares, norms of q and k, head shapes, ties."""
from __future__ import annotations

from typing import Any

from gguf_names import Converted
from tiny_models import Case, Config, Shape

BASE: Config = {
    "architectures": ["PhiForCausalLM"], "model_type": "phi", "hidden_size": 80, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 199,
    "max_position_embeddings": 256, "layer_norm_eps": 1e-5, "hidden_act": "gelu_new", "rope_theta": 10000.0,
    "partial_rotary_factor": 0.4, "qk_layernorm": False, "tie_word_embeddings": False, "torch_dtype": "float32",
}


def shapes(c: Config) -> dict[str, Shape]:
    """Names and shapes of a Phi folder; every linear has a bias, the head too."""
    h, ffn, heads, vocab = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"], c["vocab_size"]
    d = c.get("head_dim", h // heads)
    kv = (c.get("num_key_value_heads") or heads) * d
    linears: dict[str, Shape] = {"self_attn.q_proj": (heads * d, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h),
                                 "self_attn.dense": (h, heads * d), "mlp.fc1": (ffn, h), "mlp.fc2": (h, ffn),
                                 "input_layernorm": (h,)}
    if c.get("qk_layernorm"):
        linears |= {"self_attn.q_layernorm": (d,), "self_attn.k_layernorm": (d,)}
    out: dict[str, Shape] = {"model.embed_tokens.weight": (vocab, h), "lm_head.bias": (vocab,)}
    for i in range(c["num_hidden_layers"]):
        for name, shape in linears.items():
            out[f"model.layers.{i}.{name}.weight"], out[f"model.layers.{i}.{name}.bias"] = shape, shape[:1]
    out |= {"model.final_layernorm.weight": (h,), "model.final_layernorm.bias": (h,)}
    return out if c.get("tie_word_embeddings") else out | {"lm_head.weight": (vocab, h)}


PLAIN = Case("f32", BASE, shapes)
SHORT = PLAIN.but(lengths=(40,))
CASES = (
    PLAIN,
    SHORT.set("bf16-shards", torch_dtype="bfloat16").but(dtype="BF16", shards=2),
    SHORT.set("bare-config", layer_norm_eps=..., hidden_act=..., rope_theta=..., partial_rotary_factor=..., torch_dtype=...,
              num_key_value_heads=..., qk_layernorm=..., tie_word_embeddings=...),
    SHORT.set("qk-norm", qk_layernorm=True),
    SHORT.set("one-key-head", num_key_value_heads=1),
    SHORT.set("key-heads-null", num_key_value_heads=None, partial_rotary_factor=0.1),
    SHORT.set("wide-heads", head_dim=64, partial_rotary_factor=0.25),
    SHORT.set("whole-head", partial_rotary_factor=1.0, hidden_size=64, rope_theta=500.0),
    SHORT.set("parameters", rope_theta=..., partial_rotary_factor=..., rope_parameters={
        "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.2}),
    SHORT.set("tied", tie_word_embeddings=True),
    SHORT.set("act-gelu", hidden_act="gelu"),
    SHORT.set("large-eps", layer_norm_eps=0.5, qk_layernorm=True),
    PLAIN.set("linear", rope_scaling={"type": "linear", "factor": 4.0}, max_position_embeddings=64),
)


MUTATIONS = {"partial_rotary_factor": ({}, 0.2)}


# --- the same weights as llama.cpp's converter writes them

def _metadata(c: Config) -> dict[str, Any]:
    heads = c["num_attention_heads"]
    return {"context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"],
            "feed_forward_length": c["intermediate_size"], "block_count": c["num_hidden_layers"],
            "attention.head_count": heads, "attention.head_count_kv": c["num_key_value_heads"],
            "attention.layer_norm_epsilon": c["layer_norm_eps"], "rope.freq_base": c["rope_theta"],
            "rope.dimension_count": int(c["partial_rotary_factor"] * c["hidden_size"]) // heads}


NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.final_layernorm": "output_norm", "lm_head": "output"}
GGUF = Converted("phi2", NAMES, _metadata, permuted=False, optional=(".attn_q.bias", ".attn_k.bias", ".attn_v.bias"),
                 outside=OUTSIDE)
GGUF_CASES = (SHORT, SHORT.set("one-key-head", num_key_value_heads=1, layer_norm_eps=0.5),
              SHORT.set("whole-head", partial_rotary_factor=1.0, hidden_size=64, rope_theta=500.0))
