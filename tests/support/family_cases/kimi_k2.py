"""Tiny Kimi K2 checkpoints: DeepSeek V3's tensors under another model_type, one group of experts."""
from __future__ import annotations

from family_cases import deepseek_v3
from family_cases.llama import ORIGINAL

PLAIN = deepseek_v3.yarn(deepseek_v3.PLAIN, "plain", mscale=1.0, mscale_all_dim=1.0, factor=32.0, beta_fast=1.0).set(
    "plain", model_type="kimi_k2", n_group=1, topk_group=1, n_shared_experts=1, routed_scaling_factor=2.827, rope_theta=5e4)
CASES = (PLAIN, PLAIN.set("bf16", num_nextn_predict_layers=0).but(dtype="BF16", lengths=(48,), extra={}))
MUTATIONS = deepseek_v3.MUTATIONS | {
    "max_position_embeddings": ({}, 4096), ORIGINAL: ({}, 128), "n_group": ({}, 2),
    "topk_group": ({"n_group": 4, "topk_group": 2}, 4)}
