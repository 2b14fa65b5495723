"""Tiny Mixtral checkpoints: experts under w1, w2 and w3, always renormalised, windows, defaults of its own."""
from __future__ import annotations

from typing import Any

from expert_names import NAMES, expert_keys, stacked, with_experts
from family_cases.llama import ORIGINAL
from family_cases.llama import shapes as llama_shapes
from family_cases.mistral import BASE as MISTRAL
from gguf_twin import Twin
from tiny_models import Case, Config, Shape

BLOCK, W = "block_sparse_moe", ("w1", "w3", "w2")
BASE: Config = MISTRAL | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "sliding_window": None,
                          "num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": False,
                          "router_aux_loss_coef": 0.02, "router_jitter_noise": 0.0}


def shapes(c: Config) -> dict[str, Shape]:
    """Mistral's with experts; eight key heads and eight experts when the config is silent."""
    out = llama_shapes({"num_key_value_heads": 8, **c})
    for i in range(c["num_hidden_layers"]):
        out = with_experts(out, f"model.layers.{i}.", c["hidden_size"], c["intermediate_size"],
                           c.get("num_local_experts", c.get("num_experts", 8)), block=BLOCK, names=W)
    return out


def metadata(c: Config) -> dict[str, Any]:
    return expert_keys(c, "num_local_experts")


PLAIN = Case("f32", BASE, shapes, lengths=(12, 60))
SHORT = PLAIN.but(lengths=(40,))
CASES = (
    PLAIN,
    PLAIN.set("window", sliding_window=8).but(lengths=(9, 60)),
    SHORT.set("one-of-eight", num_local_experts=..., num_experts=8, num_experts_per_tok=1, head_dim=32),
    SHORT.set("all-experts", num_experts_per_tok=4),
    SHORT.set("bf16-tied", tie_word_embeddings=True, torch_dtype="bfloat16").but(dtype="BF16"),
    SHORT.set("yarn", head_dim=16, rope_scaling={"rope_type": "yarn", "factor": 4.0, ORIGINAL: 32}),
    SHORT.set("defaults", num_attention_heads=8, num_key_value_heads=..., head_dim=None, sliding_window=..., rms_norm_eps=...,
              rope_theta=..., hidden_act=..., tie_word_embeddings=..., max_position_embeddings=..., num_local_experts=...,
              num_experts_per_tok=...),
)
MUTATIONS = {"num_experts": ({"num_local_experts": 4}, 8), "num_experts_per_tok": ({}, 1)}
GGUF = Twin("llama", NAMES | {f"{BLOCK}.gate": "ffn_gate_inp", f"{BLOCK}.experts.w1": "ffn_gate_exps",
                              f"{BLOCK}.experts.w3": "ffn_up_exps", f"{BLOCK}.experts.w2": "ffn_down_exps"},
            metadata, permuted=True, changed=stacked)
GGUF_CASES = (PLAIN, PLAIN.set("tied", tie_word_embeddings=True), PLAIN.set("one", num_experts_per_tok=1))
GGUF_VARIANTS: dict[str, dict[str, Any]] = {
    "groups": {"case": PLAIN.set("groups", num_local_experts=8),
               "keys": {"expert_group_count": 4, "expert_group_used_count": 2}},
    "one-group": {"keys": {"expert_group_count": 1, "expert_group_used_count": 1}},
    "used-per-layer": {"keys": {"expert_used_count": [2, 2, 2, 2]}},
    "weighting-unread": {"keys": {"expert_weights_norm": False, "expert_weights_scale": 2.0}},
}
