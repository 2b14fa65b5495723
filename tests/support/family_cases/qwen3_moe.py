"""Tiny Qwen 3 checkpoints with experts: renormalised or not, dense layers, heads wider than hidden/heads, windows."""
from __future__ import annotations

from typing import Any

from expert_names import NAMES, expert_keys, stacked, with_experts
from family_cases.qwen2_moe import sparse
from family_cases.qwen3 import BASE as QWEN3
from family_cases.qwen3 import shapes as qwen3_shapes
from gguf_twin import Twin
from tiny_models import Case, Config, Shape

BASE: Config = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
    "output_router_logits": False, "router_aux_loss_coef": 0.001}


def shapes(c: Config) -> dict[str, Shape]:
    """Qwen 3's with experts; what the config is silent about is as large as in Qwen3-30B, but for a head."""
    h = c["hidden_size"]
    out = qwen3_shapes({"num_key_value_heads": 4, "head_dim": h // c["num_attention_heads"], **c})
    for i in sparse(c):
        out = with_experts(out, f"model.layers.{i}.", h, c.get("moe_intermediate_size", 768),
                           c.get("num_experts", c.get("num_local_experts", 128)))
    return out


def metadata(c: Config) -> dict[str, Any]:
    return expert_keys(c) | {"expert_feed_forward_length": c["moe_intermediate_size"]}


DENSE = Case("dense-layers", BASE, shapes, lengths=(12, 60)).set("dense-layers", mlp_only_layers=[1])
PLAIN = DENSE.set("f32", mlp_only_layers=[])
SHORT = PLAIN.but(lengths=(40,))
CASES = (
    DENSE, PLAIN,
    SHORT.set("not-renormalised", norm_topk_prob=False),
    SHORT.set("renormalised-absent", norm_topk_prob=..., head_dim=..., num_experts=..., num_local_experts=4,
              decoder_sparse_step=..., mlp_only_layers=..., rms_norm_eps=...),
    SHORT.set("every-second", decoder_sparse_step=2, mlp_only_layers=None),
    SHORT.set("window", use_sliding_window=True, max_window_layers=3).but(lengths=(9, 60)),
    SHORT.set("attention-bias", attention_bias=True, norm_topk_prob=False),
    SHORT.set("bf16-tied", tie_word_embeddings=True, torch_dtype="bfloat16", rope_theta=1e6).but(dtype="BF16"),
    SHORT.set("defaults", num_attention_heads=8, num_key_value_heads=..., num_experts=..., num_experts_per_tok=...,
              norm_topk_prob=..., head_dim=..., use_sliding_window=..., sliding_window=..., max_window_layers=...,
              attention_bias=..., rope_theta=..., tie_word_embeddings=..., hidden_act=...),
)
MUTATIONS = {"decoder_sparse_step": ({"mlp_only_layers": []}, 2), "mlp_only_layers": ({}, [0, 1]), "num_experts_per_tok": ({}, 1),
             "num_local_experts": ({"num_experts": 4}, 8), "head_dim": ({}, 16)}
GGUF = Twin("qwen3moe", NAMES | {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}, metadata,
            permuted=False, changed=stacked, spare=("feed_forward_length",))
GGUF_CASES = (PLAIN, PLAIN.set("narrow", head_dim=16, num_experts_per_tok=3), PLAIN.set("tied", tie_word_embeddings=True))
GGUF_VARIANTS: dict[str, dict[str, Any]] = {
    "expert-width-unsaid": {"keys": {"expert_feed_forward_length": None, "feed_forward_length": 64}},
    "not-renormalised-by-the-key": {"keys": {"expert_weights_norm": False, "expert_weights_scale": 2.0}},
}
