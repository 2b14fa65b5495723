"""Tiny GLM-4 checkpoints: half of each head rotated in neighbours, biases of q, k and v, gate and up in one tensor."""
from __future__ import annotations

from typing import Any

from gguf_names import Converted
from tiny_models import Case, Config, Shape

BASE: Config = {
    "architectures": ["GlmForCausalLM"], "model_type": "glm", "hidden_size": 64, "intermediate_size": 96, "head_dim": 16,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 199, "attention_bias": True,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5, "tie_word_embeddings": False, "pad_token_id": 0, "torch_dtype": "float32",
}


def glm_shapes(c: Config, *norms: str) -> dict[str, Shape]:
    """Names and shapes of a folder whose layers have these norms besides the input's."""
    h, ffn, heads, kv = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"], c.get("num_key_value_heads", 2)
    d, vocab = c.get("head_dim", 128), c["vocab_size"]
    out: dict[str, Shape] = {"model.embed_tokens.weight": (vocab, h), "model.norm.weight": (h,)}
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name, shape in {"self_attn.q_proj": (heads * d, h), "self_attn.k_proj": (kv * d, h), "self_attn.v_proj": (kv * d, h),
                            "self_attn.o_proj": (h, heads * d), "mlp.gate_up_proj": (2 * ffn, h), "mlp.down_proj": (h, ffn),
                            "input_layernorm": (h,), **dict.fromkeys(norms, (h,))}.items():
            out[f"{at}{name}.weight"] = shape
            if c.get("attention_bias", True) and name[-6:] in ("q_proj", "k_proj", "v_proj"):
                out[f"{at}{name}.bias"] = shape[:1]
    return out if c.get("tie_word_embeddings") else out | {"lm_head.weight": (vocab, h)}


def shapes(c: Config) -> dict[str, Shape]:
    """Names and shapes of a GLM folder."""
    return glm_shapes(c, "post_attention_layernorm")


def cases(plain: Case) -> tuple[Case, ...]:
    """What both generations are tested on."""
    short = plain.but(lengths=(40,))
    return (
        plain,
        short.set("bf16-shards", torch_dtype="bfloat16").but(dtype="BF16", shards=2),
        short.set("bare-config", head_dim=..., num_attention_heads=2, num_key_value_heads=..., hidden_size=32, attention_bias=...,
                  max_position_embeddings=..., rms_norm_eps=..., hidden_act=..., rope_theta=..., partial_rotary_factor=...,
                  tie_word_embeddings=..., torch_dtype=...),
        short.set("no-biases", attention_bias=False, num_key_value_heads=1),
        short.set("half-of-32", head_dim=32),
        short.set("quarter", partial_rotary_factor=0.25, rope_theta=500),
        short.set("whole-head", partial_rotary_factor=1.0),
        short.set("parameters", rope_theta=..., partial_rotary_factor=..., rope_parameters={
            "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}),
        short.set("tied", tie_word_embeddings=True, num_key_value_heads=4),
        short.set("large-eps", rms_norm_eps=0.5, hidden_act="gelu"),
        plain.set("yarn", rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
    )


PLAIN = Case("f32", BASE, shapes)
CASES = cases(PLAIN)
MUTATIONS: dict[str, tuple[Config, Any]] = {"head_dim": ({}, 32), "num_key_value_heads": ({}, 1), "rms_norm_eps": ({}, 0.3),
                                            "partial_rotary_factor": ({}, 0.25)}


# --- the same weights as llama.cpp's converter writes them

def metadata(c: Config) -> dict[str, Any]:
    """The keys of a converted GLM, without the architecture's prefix."""
    heads = c["num_attention_heads"]
    return {"context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"],
            "block_count": c["num_hidden_layers"], "feed_forward_length": c["intermediate_size"], "attention.head_count": heads,
            "attention.head_count_kv": c["num_key_value_heads"], "attention.layer_norm_rms_epsilon": c["rms_norm_eps"],
            "rope.freq_base": c["rope_theta"], "rope.dimension_count": int(c["head_dim"] * c["partial_rotary_factor"])}


NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
OPTIONAL = (".attn_q.bias", ".attn_k.bias", ".attn_v.bias")
GGUF = Converted("chatglm", NAMES, metadata, permuted=False, optional=OPTIONAL, outside=OUTSIDE)
SHORT = PLAIN.but(lengths=(40,))
GGUF_CASES = (SHORT, SHORT.set("no-biases", attention_bias=False, tie_word_embeddings=True, rms_norm_eps=0.5))
