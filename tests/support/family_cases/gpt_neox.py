"""Tiny GPT-NeoX checkpoints: rotated shares, residual forms, biases, and the base in each spelling."""
from __future__ import annotations

from typing import Any

from gguf_names import Converted, ungrouped
from tiny_models import Arrays, Case, Config, Shape

BASE: Config = {
    "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 199, "max_position_embeddings": 256,
    "layer_norm_eps": 1e-5, "hidden_act": "gelu", "rotary_pct": 0.25, "rotary_emb_base": 10000,
    "use_parallel_residual": True, "tie_word_embeddings": False, "torch_dtype": "float32",
}


def shapes(c: Config) -> dict[str, Shape]:
    """Names and shapes of a GPT-NeoX folder."""
    h, ffn, vocab = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    out: dict[str, Shape] = {"gpt_neox.embed_in.weight": (vocab, h)}
    for i in range(c["num_hidden_layers"]):
        for name, shape in {"attention.query_key_value": (3 * h, h), "attention.dense": (h, h), "input_layernorm": (h,),
                            "post_attention_layernorm": (h,), "mlp.dense_h_to_4h": (ffn, h),
                            "mlp.dense_4h_to_h": (h, ffn)}.items():
            out[f"gpt_neox.layers.{i}.{name}.weight"] = shape
            if c.get("attention_bias", True) or not name.startswith("attention"):
                out[f"gpt_neox.layers.{i}.{name}.bias"] = shape[:1]
    out |= {"gpt_neox.final_layer_norm.weight": (h,), "gpt_neox.final_layer_norm.bias": (h,)}
    return out if c.get("tie_word_embeddings") else out | {"embed_out.weight": (vocab, h)}


def renamed_head(c: Config) -> dict[str, Shape]:
    """As transformers 5 knows the head."""
    return {name.replace("embed_out", "lm_head"): shape for name, shape in shapes(c).items()}


PLAIN = Case("f32", BASE, shapes)
SHORT = PLAIN.but(lengths=(40,))
CASES = (
    PLAIN,
    SHORT.set("bf16-shards", torch_dtype="bfloat16").but(dtype="BF16", shards=2),
    SHORT.set("sequential", use_parallel_residual=False, rotary_pct=1.0),
    SHORT.set("bare-config", layer_norm_eps=..., hidden_act=..., rotary_pct=..., rotary_emb_base=..., torch_dtype=...,
              use_parallel_residual=..., tie_word_embeddings=...),
    SHORT.set("half", rotary_pct=0.5),
    SHORT.set("quarter-of-64", hidden_size=128, num_attention_heads=2),
    SHORT.set("three-eighths", rotary_pct=0.375),
    SHORT.set("base", rotary_emb_base=500),
    SHORT.set("v5", rotary_pct=..., rotary_emb_base=..., rope_parameters={
        "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}),
    SHORT.set("v5-beats-v4", rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}),
    SHORT.set("restated", rope_theta=10000, partial_rotary_factor=0.25, rope_scaling=None),
    SHORT.set("no-attention-bias", attention_bias=False).but(seed=1),
    SHORT.set("tied", tie_word_embeddings=True),
    SHORT.but(name="lm-head", shapes=renamed_head),
    SHORT.set("act-gelu-new", hidden_act="gelu_new"),
    SHORT.set("large-eps", layer_norm_eps=0.5),
    PLAIN.set("linear", rope_scaling={"type": "linear", "factor": 4.0}, max_position_embeddings=64),
    PLAIN.set("dynamic", rope_scaling={"type": "dynamic", "factor": 4.0}, rotary_pct=0.5, max_position_embeddings=32).but(
        by_length=True),
    PLAIN.set("yarn", rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
              rotary_pct=0.5),
)


MUTATIONS = {"rotary_pct": ({}, 0.5), "partial_rotary_factor": ({}, 0.5),
             # two frequencies are the same by either length
             "original_max_position_embeddings": ({"rotary_pct": 1.0, "rope_scaling": {
                 "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}, 64)}


# --- the same weights as llama.cpp's converter writes them; llama.cpp has the tanh form of gelu only

def _ungrouped(case: Case) -> Arrays:
    heads = case.config["num_attention_heads"]
    return {n: ungrouped(x, heads, heads) if "query_key_value" in n else x for n, x in case.tensors().items()}


def _metadata(c: Config) -> dict[str, Any]:
    d = c["hidden_size"] // c["num_attention_heads"]
    return {"context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"],
            "block_count": c["num_hidden_layers"], "feed_forward_length": c["intermediate_size"],
            "rope.dimension_count": int(c["rotary_pct"] * d), "attention.head_count": c["num_attention_heads"],
            "use_parallel_residual": c["use_parallel_residual"], "attention.layer_norm_epsilon": c["layer_norm_eps"]}


NAMES = {"input_layernorm": "attn_norm", "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output",
         "post_attention_layernorm": "ffn_norm", "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down"}
OUTSIDE = {"gpt_neox.embed_in": "token_embd", "gpt_neox.final_layer_norm": "output_norm", "embed_out": "output"}
GGUF = Converted("gptneox", NAMES, _metadata, permuted=False, stem=r"gpt_neox\.layers\.(\d+)\.", outside=OUTSIDE,
                 changed=_ungrouped, broken=lambda case, tensors: case.tensors())
TANH = SHORT.set("tanh", hidden_act="gelu_new")
GGUF_CASES = (TANH, TANH.set("sequential", use_parallel_residual=False, rotary_pct=1.0),
              TANH.set("half", rotary_pct=0.5, layer_norm_eps=0.5))
