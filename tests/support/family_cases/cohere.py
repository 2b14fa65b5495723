"""Tiny Command R checkpoints: one norm for both branches, norms per head, scaled logits, ties."""
from __future__ import annotations

from typing import Any

from gguf_names import Converted
from tiny_models import Case, Config, Shape

BASE: Config = {
    "architectures": ["CohereForCausalLM"], "model_type": "cohere", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 199,
    "max_position_embeddings": 256, "layer_norm_eps": 1e-5, "logit_scale": 0.3, "hidden_act": "silu", "rope_theta": 10000.0,
    "use_qk_norm": False, "attention_bias": False, "pad_token_id": 0, "torch_dtype": "float32",
}
HEAD = {"lm_head.weight": (199, 64)}


def shapes(c: Config) -> dict[str, Shape]:
    """Names and shapes of a Command R folder; it is tied."""
    h, ffn, heads = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"]
    d, kv = c.get("head_dim", h // heads), c.get("num_key_value_heads") or heads
    linears = {"self_attn.q_proj": (heads * d, h), "self_attn.k_proj": (kv * d, h), "self_attn.v_proj": (kv * d, h),
               "self_attn.o_proj": (h, heads * d), "mlp.gate_proj": (ffn, h), "mlp.up_proj": (ffn, h), "mlp.down_proj": (h, ffn)}
    out: dict[str, Shape] = {"model.embed_tokens.weight": (c["vocab_size"], h), "model.norm.weight": (h,)}
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        out[f"{at}input_layernorm.weight"] = (h,)
        for name, shape in linears.items():
            out[f"{at}{name}.weight"] = shape
            if c.get("attention_bias") and "attn" in name:
                out[f"{at}{name}.bias"] = shape[:1]
        if c.get("use_qk_norm"):
            out |= {f"{at}self_attn.{n}_norm.weight": (m, d) for n, m in (("q", heads), ("k", kv))}
    return out


PLAIN = Case("f32", BASE, shapes)
SHORT = PLAIN.but(lengths=(40,))
CASES = (
    PLAIN,
    SHORT.set("bf16-shards", torch_dtype="bfloat16", use_qk_norm=True).but(dtype="BF16", shards=2),
    SHORT.set("bare-config", layer_norm_eps=..., logit_scale=..., hidden_act=..., rope_theta=..., use_qk_norm=...,
              attention_bias=..., max_position_embeddings=..., num_key_value_heads=..., torch_dtype=...),
    SHORT.set("key-heads-null", num_key_value_heads=None, model_max_length=512),
    SHORT.set("head-norms", use_qk_norm=True, num_key_value_heads=1),
    SHORT.set("wide-heads", head_dim=32, use_qk_norm=True),
    SHORT.set("biases", attention_bias=True),
    SHORT.set("untied", tie_word_embeddings=False).but(extra=HEAD),
    SHORT.set("large-eps", layer_norm_eps=0.5, use_qk_norm=True, hidden_act="gelu"),
    PLAIN.set("linear", rope_scaling={"type": "linear", "factor": 4.0}, max_position_embeddings=64).but(seed=1),
    SHORT.set("yarn-parameters", rope_theta=..., rope_parameters={
        "rope_type": "yarn", "rope_theta": 5e4, "factor": 4.0, "original_max_position_embeddings": 32}),
)
MUTATIONS: dict[str, tuple[Config, Any]] = {
    "head_dim": ({}, 32), "num_key_value_heads": ({}, 1), "layer_norm_eps": ({}, 0.3), "model_max_length": ({}, 512)}


# --- the same weights as llama.cpp's converter writes them

def metadata(c: Config) -> dict[str, Any]:
    """The keys of a converted Command R, without the architecture's prefix."""
    heads = c["num_attention_heads"]
    return {"context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"],
            "block_count": c["num_hidden_layers"], "feed_forward_length": c["intermediate_size"], "attention.head_count": heads,
            "attention.head_count_kv": c["num_key_value_heads"], "attention.layer_norm_epsilon": c["layer_norm_eps"],
            "rope.freq_base": c["rope_theta"], "rope.scaling.type": "none", "logit_scale": c["logit_scale"],
            "rope.dimension_count": c["hidden_size"] // heads}


NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
GGUF = Converted("command-r", NAMES, metadata, permuted=False, outside=OUTSIDE)
# llama.cpp looks for the norms of heads in a model of 64 layers or more only
GGUF_CASES = (SHORT, SHORT.set("as-plus", use_qk_norm=True, layer_norm_eps=0.5, num_hidden_layers=64))
