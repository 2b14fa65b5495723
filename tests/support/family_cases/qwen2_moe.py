"""Tiny Qwen 2 checkpoints with experts: a gated shared expert, dense layers, weights renormalised or not, windows."""
from __future__ import annotations

from typing import Any

from expert_names import NAMES, expert_keys, mlp_shapes, stacked, with_experts
from family_cases.qwen2 import BASE as QWEN2
from family_cases.qwen2 import LISTED
from family_cases.qwen2 import shapes as qwen2_shapes
from gguf_twin import Twin
from tiny_models import Arrays, Case, Config, Shape

BASE: Config = QWEN2 | {
    "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "norm_topk_prob": False, "output_router_logits": False, "router_aux_loss_coef": 0.001}
GATE = "shared_expert_gate.weight"


def sparse(c: Config) -> list[int]:
    """The layers whose MLP is experts."""
    step, dense = c.get("decoder_sparse_step", 1), c.get("mlp_only_layers") or []
    return [i for i in range(c["num_hidden_layers"]) if (i + 1) % step == 0 and i not in dense]


def shapes(c: Config) -> dict[str, Shape]:
    """Qwen 2's with experts; what the config is silent about is as large as in Qwen1.5-MoE."""
    h, ffn = c["hidden_size"], c["intermediate_size"]
    out = qwen2_shapes({"num_key_value_heads": 16, "intermediate_size": ffn, **c})
    out = out if c.get("qkv_bias", True) else {n: s for n, s in out.items() if not n.endswith("bias")}
    for i in sparse(c):
        at = f"model.layers.{i}."
        out = with_experts(out, at, h, c.get("moe_intermediate_size", 1408), c.get("num_experts", 60))
        out |= mlp_shapes(f"{at}mlp.shared_expert", h, c["shared_expert_intermediate_size"])
        out |= {f"{at}mlp.{GATE}": (1, h)}
    return out


def changed(case: Case) -> Arrays:
    """Stacked experts, and the shared expert's gate as one row."""
    return {n: x[0] if n.endswith(GATE) else x for n, x in stacked(case).items()}


def metadata(c: Config) -> dict[str, Any]:
    return expert_keys(c) | {"expert_feed_forward_length": c["moe_intermediate_size"],
                             "expert_shared_feed_forward_length": c["shared_expert_intermediate_size"]}


DENSE = Case("dense-layers", BASE, shapes, lengths=(12, 60)).set("dense-layers", mlp_only_layers=[1])
PLAIN = DENSE.set("f32", mlp_only_layers=[])
SHORT = PLAIN.but(lengths=(40,))
WINDOW = SHORT.set("window", use_sliding_window=True, max_window_layers=3).but(lengths=(9, 60))
CASES = (
    DENSE, PLAIN, WINDOW,
    SHORT.set("renormalised", norm_topk_prob=True),
    SHORT.set("every-second", decoder_sparse_step=2, mlp_only_layers=...),
    SHORT.set("no-bias", qkv_bias=False, mlp_only_layers=None),
    WINDOW.set("window-listed", layer_types=LISTED).but(lengths=(40,)),
    SHORT.set("bf16-tied", tie_word_embeddings=True, torch_dtype="bfloat16").but(dtype="BF16"),
    SHORT.set("defaults", hidden_size=128, num_attention_heads=16, num_key_value_heads=..., num_experts=...,
              num_experts_per_tok=..., decoder_sparse_step=..., mlp_only_layers=..., norm_topk_prob=..., rope_theta=...,
              use_sliding_window=..., sliding_window=..., max_window_layers=..., rms_norm_eps=..., tie_word_embeddings=...),
)
MUTATIONS = {"decoder_sparse_step": ({"mlp_only_layers": []}, 2), "mlp_only_layers": ({}, [0, 1]), "num_experts_per_tok": ({}, 1),
             "qkv_bias": ({}, False)}
GGUF = Twin("qwen2moe", NAMES | {"mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
                                 "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp"},
            metadata, permuted=False, optional=("attn_q.bias", "attn_k.bias", "attn_v.bias"), changed=changed,
            spare=("feed_forward_length",))
GGUF_CASES = (PLAIN, PLAIN.set("one", num_experts_per_tok=1))
GGUF_VARIANTS: dict[str, dict[str, Any]] = {
    "expert-width-unsaid": {"keys": {"expert_feed_forward_length": None, "feed_forward_length": 64}},
    "shared-width-unsaid": {"keys": {"expert_shared_feed_forward_length": None, "feed_forward_length": 48}},
    "renormalised-by-the-key": {"keys": {"expert_weights_norm": True, "expert_weights_scale": 2.0}},
}
