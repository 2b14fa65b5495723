"""Tiny OLMoE checkpoints: q and k normed whole, clipped, experts whose weights are renormalised or not."""
from __future__ import annotations

from typing import Any

from expert_names import NAMES, expert_keys, stacked, with_experts
from family_cases.llama import BASE as LLAMA
from family_cases.llama import shapes as llama_shapes
from gguf_twin import Twin
from tiny_models import Case, Config, Shape

BASE: Config = {k: v for k, v in LLAMA.items() if k != "mlp_bias"} | {
    "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "num_key_value_heads": 4, "intermediate_size": 32,
    "clip_qkv": None, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": False, "output_router_logits": False,
    "router_aux_loss_coef": 0.01}


def shapes(c: Config) -> dict[str, Shape]:
    """Llama's with norms of q and k, and experts, 64 when the config is silent."""
    out = llama_shapes(c)
    out |= {n.replace("_proj", "_norm"): s[:1] for n, s in out.items() if n.endswith(("q_proj.weight", "k_proj.weight"))}
    for i in range(c["num_hidden_layers"]):
        out = with_experts(out, f"model.layers.{i}.", c["hidden_size"], c["intermediate_size"],
                           c.get("num_experts", c.get("num_local_experts", 64)))
    return out


PLAIN = Case("f32", BASE, shapes, lengths=(12, 60))
SHORT = PLAIN.but(lengths=(40,))
CASES = (
    PLAIN,
    SHORT.set("renormalised", norm_topk_prob=True, num_experts=..., num_local_experts=4),
    SHORT.set("clipped-two-key-heads", clip_qkv=0.8, num_key_value_heads=2),
    SHORT.set("attention-bias", attention_bias=True),
    SHORT.set("bf16-tied", tie_word_embeddings=True, torch_dtype="bfloat16").but(dtype="BF16"),
    SHORT.set("defaults", num_key_value_heads=..., clip_qkv=..., num_experts=..., num_experts_per_tok=..., norm_topk_prob=...,
              attention_bias=..., rms_norm_eps=..., rope_theta=..., tie_word_embeddings=..., hidden_act=...),
)
MUTATIONS = {"clip_qkv": ({}, 0.8), "num_experts_per_tok": ({}, 1), "num_local_experts": ({"num_experts": 4}, 8),
             "num_key_value_heads": ({}, 2)}
GGUF = Twin("olmoe", NAMES | {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}, expert_keys, permuted=False,
            changed=stacked)
GGUF_CASES = (PLAIN, PLAIN.set("three", num_experts_per_tok=3))
GGUF_VARIANTS: dict[str, dict[str, Any]] = {"renormalised-by-the-key": {"keys": {"expert_weights_norm": True}}}
