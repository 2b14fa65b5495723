"""Tiny Gemma 1 checkpoints: head shapes, ties, biases, spellings of the activation; and what the generations share."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiny_models import Arrays, Case, Config, Shape

BASE: Config = {
    "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "hidden_size": 72, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 199,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "gelu_pytorch_tanh",
    "torch_dtype": "float32",
}
HEAD = {"lm_head.weight": (199, 72)}


def gemma_shapes(c: Config, *norms: str) -> dict[str, Shape]:
    """Names and shapes of a Gemma folder; `norms` are a layer's norms over the width."""
    h, ffn, heads, d = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"], c.get("head_dim", 256)
    kv = c.get("num_key_value_heads", 4) * d
    out: dict[str, Shape] = {"model.embed_tokens.weight": (c["vocab_size"], h), "model.norm.weight": (h,)}
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        out |= {f"{at}{name}.weight": (h,) for name in norms}
        for name, shape in {"self_attn.q_proj": (heads * d, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h),
                            "self_attn.o_proj": (h, heads * d), "mlp.gate_proj": (ffn, h), "mlp.up_proj": (ffn, h),
                            "mlp.down_proj": (h, ffn)}.items():
            out[f"{at}{name}.weight"] = shape
            if c.get("attention_bias") and "attn" in name:
                out[f"{at}{name}.bias"] = shape[:1]
    return out


def shapes(c: Config) -> dict[str, Shape]:
    """The layout of Gemma 1."""
    return gemma_shapes(c, "input_layernorm", "post_attention_layernorm")


PLAIN = Case("f32", BASE, shapes)
SHORT = PLAIN.but(lengths=(40,))
CASES = (
    PLAIN,
    SHORT.set("bf16-shards", torch_dtype="bfloat16").but(dtype="BF16", shards=2),
    SHORT.set("f16", torch_dtype="float16").but(dtype="F16"),
    SHORT.set("bare-config", rms_norm_eps=..., rope_theta=..., hidden_act=..., torch_dtype=...),
    SHORT.set("head-dim-absent", head_dim=..., num_attention_heads=2, num_key_value_heads=1, intermediate_size=32),
    SHORT.set("one-kv-head", num_key_value_heads=1),
    SHORT.set("attention-bias", attention_bias=True),
    SHORT.set("untied", tie_word_embeddings=False).but(extra=HEAD),
    SHORT.set("tied-own-head").but(extra=HEAD),
    SHORT.set("act-gelu", hidden_act="gelu", hidden_activation=None),
    SHORT.set("act-silu", hidden_act="silu"),
    SHORT.set("large-eps", rms_norm_eps=0.5),
    PLAIN.set("linear", rope_scaling={"type": "linear", "factor": 4.0}, rope_theta=20000.0),
    PLAIN.set("parameters", rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 1e5}),
)


# --- the same weights as llama.cpp's converter writes them

LINEARS = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
           "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_metadata(c: Config) -> dict[str, Any]:
    """The keys of a converted Gemma, without the architecture's prefix: it writes no rope keys."""
    return {"context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"],
            "block_count": c["num_hidden_layers"], "feed_forward_length": c["intermediate_size"],
            "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": c["num_key_value_heads"],
            "attention.layer_norm_rms_epsilon": float(c["rms_norm_eps"]), "attention.key_length": c["head_dim"],
            "attention.value_length": c["head_dim"]}


def gguf_tensors(case: Case, norms: Mapping[str, str] = NORMS) -> Arrays:
    """The case's tensors under llama.cpp's names, 1 added to every norm."""
    out: Arrays = {}
    for name, x in case.tensors().items():
        path, kind = name.rsplit(".", 1)
        if path in OUTSIDE:
            theirs = OUTSIDE[path]
        else:
            _, _, i, part = path.split(".", 3)
            theirs = f"blk.{i}.{(LINEARS | dict(norms))[part]}"
        out[f"{theirs}.{kind}"] = x + 1 if path.endswith("norm") else x
    return out


GGUF = (PLAIN, PLAIN.set("one-kv-head", num_key_value_heads=1), PLAIN.set("attention-bias", attention_bias=True))
