"""Tiny DeepSeek V2 checkpoints: softmax scores, groups by their best expert, queries with and without a low rank."""
from __future__ import annotations

from typing import Any

from family_cases.deepseek_v3 import BASE as V3
from family_cases.deepseek_v3 import MUTATIONS as OF_V3
from family_cases.deepseek_v3 import YARN, yarn
from family_cases.deepseek_v3 import shapes as v3_shapes
from tiny_models import Case, Config, Shape

BASE: Config = {k: v for k, v in V3.items() if k != "num_nextn_predict_layers"} | {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "norm_topk_prob": False, "scoring_func": "softmax",
    "topk_method": "group_limited_greedy", "routed_scaling_factor": 3.5}


def shapes(config: Config) -> dict[str, Shape]:
    """V3's with V2's defaults."""
    return v3_shapes({"first_k_dense_replace": 0, "n_shared_experts": 2, **config})


PLAIN = Case("plain", BASE, shapes, lengths=(1, 100))
SHORT = PLAIN.but(lengths=(48,))
GREEDY = SHORT.set("greedy", topk_method="greedy", n_group=1, topk_group=1, routed_scaling_factor=1.0)
CASES = (
    PLAIN,
    SHORT.set("bf16").but(dtype="BF16"),
    GREEDY,
    GREEDY.set("greedy-in-groups", n_group=4, topk_group=2, routed_scaling_factor=2.0),
    GREEDY.set("lite", q_lora_rank=None, n_group=None, topk_group=None,
               rope_scaling={**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}),
    SHORT.set("biases", attention_bias=True),
    SHORT.set("all-experts", first_k_dense_replace=0),
    yarn(SHORT, "mscale-absent", mscale=..., mscale_all_dim=...),
    SHORT.set("version-5", rope_scaling=..., rope_theta=..., rope_parameters={**YARN, "rope_type": "yarn", "rope_theta": 5e4},
              head_dim=16, qk_head_dim=28, mlp_bias=False),
    SHORT.set("default-query-rank", q_lora_rank=...), SHORT.set("default-latent-rank", kv_lora_rank=...),
    SHORT.set("defaults", **dict.fromkeys(
        ("num_key_value_heads", "n_shared_experts", "n_group", "topk_group", "routed_scaling_factor", "norm_topk_prob",
         "first_k_dense_replace", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim",
         "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "attention_bias",
         "scoring_func", "topk_method", "moe_layer_freq", "ep_size", "tie_word_embeddings"), ...)),
)
MUTATIONS: dict[str, tuple[Config, Any]] = {k: v for k, v in OF_V3.items() if k in BASE or k == "qk_head_dim"} | {
    "num_experts": ({}, 4), "topk_method": ({}, "greedy")}
