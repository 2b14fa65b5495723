"""Tiny StarCoder2 checkpoints: windows, biases, head shapes, ties."""
from __future__ import annotations

from typing import Any

from gguf_names import Converted
from tiny_models import Case, Config, Shape

BASE: Config = {
    "architectures": ["Starcoder2ForCausalLM"], "model_type": "starcoder2", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 199,
    "max_position_embeddings": 256, "norm_epsilon": 1e-5, "hidden_act": "gelu_pytorch_tanh", "rope_theta": 999999.4420358813,
    "use_bias": True, "sliding_window": 8, "norm_type": "layer_norm", "mlp_type": "default", "torch_dtype": "float32",
}
HEAD = {"lm_head.weight": (199, 64)}


def shapes(c: Config) -> dict[str, Shape]:
    """Names and shapes of a StarCoder2 folder."""
    h, ffn, heads = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"]
    d = c.get("head_dim") or h // heads
    kv = c.get("num_key_value_heads", 2) * d
    out: dict[str, Shape] = {"model.embed_tokens.weight": (c["vocab_size"], h), "model.norm.weight": (h,),
                             "model.norm.bias": (h,)}
    for i in range(c["num_hidden_layers"]):
        for name, shape in {"self_attn.q_proj": (heads * d, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h),
                            "self_attn.o_proj": (h, heads * d), "mlp.c_fc": (ffn, h), "mlp.c_proj": (h, ffn),
                            "input_layernorm": (h,), "post_attention_layernorm": (h,)}.items():
            out[f"model.layers.{i}.{name}.weight"] = shape
            if c.get("use_bias", True) or name.endswith("norm"):
                out[f"model.layers.{i}.{name}.bias"] = shape[:1]
    return out


PLAIN = Case("f32", BASE, shapes)
SHORT = PLAIN.but(lengths=(40,))
CASES = (
    PLAIN,
    SHORT.set("bf16-shards", torch_dtype="bfloat16").but(dtype="BF16", shards=2),
    SHORT.set("bare-config", norm_epsilon=..., hidden_act=..., rope_theta=..., use_bias=..., sliding_window=...,
              num_key_value_heads=..., norm_type=..., mlp_type=..., torch_dtype=...),
    SHORT.set("no-window", sliding_window=None),
    SHORT.set("window-of-13", sliding_window=13),
    SHORT.set("no-bias", use_bias=False),
    SHORT.set("wide-heads", head_dim=32, num_key_value_heads=1),
    SHORT.set("untied", tie_word_embeddings=False).but(extra=HEAD),
    SHORT.set("act-gelu", hidden_act="gelu"),
    SHORT.set("large-eps", norm_epsilon=0.5),
    SHORT.set("base", rope_theta=500.0),
    PLAIN.set("linear", rope_scaling={"type": "linear", "factor": 4.0}, max_position_embeddings=64),
    PLAIN.set("parameters", rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
)


# --- the same weights as llama.cpp's converter writes them; llama.cpp has no window here

def _metadata(c: Config) -> dict[str, Any]:
    return {"context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"],
            "block_count": c["num_hidden_layers"], "feed_forward_length": c["intermediate_size"],
            "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": c["num_key_value_heads"],
            "attention.layer_norm_epsilon": c["norm_epsilon"], "rope.freq_base": float(c["rope_theta"])}


NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
         "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
GGUF = Converted("starcoder2", NAMES, _metadata, permuted=False, outside=OUTSIDE,
                 optional=(".attn_q.bias", ".attn_k.bias", ".attn_v.bias"))
OPEN = SHORT.set("no-window", sliding_window=None, rope_theta=10000.0)
GGUF_CASES = (OPEN, OPEN.set("one-key-head", num_key_value_heads=1, norm_epsilon=0.5), OPEN.set("untied").but(extra=HEAD))
