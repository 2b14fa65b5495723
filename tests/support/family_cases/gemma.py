"""Tiny Gemma 1 checkpoints: head shapes, ties, biases, spellings of the activation; and what the generations share."""
from __future__ import annotations

from typing import Any

from gguf_twin import LLAMA_NAMES, Twin, sizes
from tiny_models import Case, Config, Shape

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
    SHORT.set("head-dim-absent", head_dim=..., num_attention_heads=2, num_key_value_heads=1, intermediate_size=32).but(seed=2),
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


def gguf_keys(c: Config) -> dict[str, Any]:
    """The keys of a converted Gemma, without the architecture's prefix: none is of rope."""
    return {k: v for k, v in sizes(c).items() if not k.startswith("rope.")}


GGUF = Twin("gemma", LLAMA_NAMES, gguf_keys, permuted=False, norm_offset=1.0)
SAME = PLAIN.set("f32", rms_norm_eps=0.05)
GGUF_CASES = (SAME, SAME.set("one-kv-head", num_key_value_heads=1))
