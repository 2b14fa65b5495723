"""Tiny Falcon checkpoints: one key head, a key head each, groups; parallel with one norm or two, sequential; biases."""
from __future__ import annotations

from typing import Any

from gguf_names import Converted, ungrouped
from tiny_models import Arrays, Case, Config, Shape

BASE: Config = {
    "architectures": ["FalconForCausalLM"], "model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "vocab_size": 199, "max_position_embeddings": 256, "layer_norm_epsilon": 1e-5,
    "alibi": False, "bias": False, "multi_query": True, "parallel_attn": True, "new_decoder_architecture": False,
    "apply_residual_connection_post_layernorm": False, "torch_dtype": "float32",
}
NEW = {"new_decoder_architecture": True, "num_kv_heads": 2}
HEAD = {"lm_head.weight": (199, 64)}


def kv_heads(c: Config) -> int:
    """Key heads, which three keys decide."""
    if c.get("new_decoder_architecture"):
        return c.get("num_kv_heads") or c["num_attention_heads"]
    return 1 if c.get("multi_query", True) else c["num_attention_heads"]


def norms(c: Config) -> tuple[str, ...]:
    """The norms of a layer."""
    if not c.get("parallel_attn", True):
        return "input_layernorm", "post_attention_layernorm"
    two = c.get("new_decoder_architecture") and (c.get("num_ln_in_parallel_attn") or 2) == 2
    return ("ln_attn", "ln_mlp") if two else ("input_layernorm",)


def shapes(c: Config) -> dict[str, Shape]:
    """Names and shapes of a Falcon folder."""
    h, heads, ffn = c["hidden_size"], c["num_attention_heads"], c.get("ffn_hidden_size") or 4 * c["hidden_size"]
    out: dict[str, Shape] = {"transformer.word_embeddings.weight": (c["vocab_size"], h)}
    for i in range(c["num_hidden_layers"]):
        at = f"transformer.h.{i}."
        for name in norms(c):
            out |= {f"{at}{name}.weight": (h,), f"{at}{name}.bias": (h,)}
        for name, shape in {"self_attention.query_key_value": ((heads + 2 * kv_heads(c)) * h // heads, h),
                            "self_attention.dense": (h, h), "mlp.dense_h_to_4h": (ffn, h),
                            "mlp.dense_4h_to_h": (h, ffn)}.items():
            out[f"{at}{name}.weight"] = shape
            if c.get("bias"):
                out[f"{at}{name}.bias"] = shape[:1]
    return out | {"transformer.ln_f.weight": (h,), "transformer.ln_f.bias": (h,)}


PLAIN = Case("f32", BASE, shapes)
SHORT = PLAIN.but(lengths=(40,))
CASES = (
    PLAIN,
    SHORT.set("bf16-shards", torch_dtype="bfloat16").but(dtype="BF16", shards=2),
    PLAIN.set("groups", **NEW),
    SHORT.set("groups-one-norm", **NEW, num_ln_in_parallel_attn=1),
    SHORT.set("groups-all-heads", new_decoder_architecture=True, num_kv_heads=None, num_ln_in_parallel_attn=None),
    SHORT.set("groups-two-norms-said", **NEW, num_ln_in_parallel_attn=2, multi_query=False),
    SHORT.set("head-each", multi_query=False),
    SHORT.set("sequential", multi_query=False, parallel_attn=False, bias=True),
    SHORT.set("sequential-one-key", parallel_attn=False),
    SHORT.set("bare-config", layer_norm_epsilon=..., alibi=..., bias=..., multi_query=..., parallel_attn=...,
              new_decoder_architecture=..., apply_residual_connection_post_layernorm=..., torch_dtype=...),
    SHORT.set("nulls", bias=None, new_decoder_architecture=None, alibi=None, multi_query=None, parallel_attn=None),
    SHORT.set("biases", **NEW, bias=True),
    SHORT.set("width", **NEW, ffn_hidden_size=96),
    SHORT.set("untied", tie_word_embeddings=False).but(extra=HEAD),
    SHORT.set("act-gelu-new", activation="gelu_new"),
    SHORT.set("act-relu", activation="relu", rope_theta=500.0),
    SHORT.set("large-eps", **NEW, layer_norm_epsilon=0.5),
    PLAIN.set("linear", rope_scaling={"type": "linear", "factor": 4.0}, max_position_embeddings=64),
    PLAIN.set("parameters", rope_parameters={"rope_type": "default", "rope_theta": 500042.0}),
)


MUTATIONS = {"num_kv_heads": (NEW, 4), "multi_query": ({}, False)}


# --- the same weights as llama.cpp's converter writes them; llama.cpp has the tanh form of gelu only

def _ungrouped(case: Case) -> Arrays:
    groups, heads = kv_heads(case.config), case.config["num_attention_heads"]
    return {n: ungrouped(x, groups, heads) if "query_key_value" in n else x for n, x in case.tensors().items()}


def _metadata(c: Config) -> dict[str, Any]:
    return {"context_length": 256, "embedding_length": c["hidden_size"], "feed_forward_length": 4 * c["hidden_size"],
            "block_count": c["num_hidden_layers"], "attention.head_count": c["num_attention_heads"],
            "attention.head_count_kv": kv_heads(c), "attention.layer_norm_epsilon": c["layer_norm_epsilon"]}


# With two norms the one that feeds the MLP is called attn_norm.
NAMES = {"input_layernorm": "attn_norm", "ln_attn": "attn_norm_2", "ln_mlp": "attn_norm",
         "self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output",
         "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down"}
OUTSIDE = {"transformer.word_embeddings": "token_embd", "transformer.ln_f": "output_norm", "lm_head": "output"}
GGUF = Converted("falcon", NAMES, _metadata, permuted=False, stem=r"transformer\.h\.(\d+)\.", outside=OUTSIDE,
                 changed=_ungrouped, broken=lambda case, tensors: case.tensors())
TANH = SHORT.set("tanh", activation="gelu_new")
GGUF_CASES = (TANH.set("groups", **NEW), TANH, TANH.set("one-norm", **NEW, num_ln_in_parallel_attn=1),
              TANH.set("untied", tie_word_embeddings=False, layer_norm_epsilon=0.5).but(extra=HEAD))
