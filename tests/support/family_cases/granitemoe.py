"""Tiny Granite checkpoints with experts: gate and up as halves of one tensor, a softmax over the chosen, the four scalars."""
from __future__ import annotations

from typing import Any

from expert_names import NAMES, expert_keys
from family_cases.granite import BASE as GRANITE
from family_cases.granite import SCALARS
from family_cases.granite import metadata as granite_keys
from family_cases.llama import shapes as llama_shapes
from gguf_twin import Twin
from tiny_models import Arrays, Case, Config, Shape

BLOCK = "block_sparse_moe"
BASE: Config = {k: v for k, v in GRANITE.items() if k != "mlp_bias"} | {
    "architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe", "intermediate_size": 32, "num_local_experts": 4,
    "num_experts_per_tok": 2, "output_router_logits": False, "router_aux_loss_coef": 0.001}


def shapes(c: Config) -> dict[str, Shape]:
    """Llama's with experts in two tensors; eight when the config is silent."""
    h, f, x = c["hidden_size"], c["intermediate_size"], c.get("num_local_experts", 8)
    out = {n: s for n, s in llama_shapes(c).items() if ".mlp." not in n}
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}.{BLOCK}."
        out |= {f"{at}input_linear.weight": (x, 2 * f, h), f"{at}output_linear.weight": (x, h, f),
                f"{at}router.layer.weight": (x, h)}
    return out


def changed(case: Case) -> Arrays:
    """Gate and up as two tensors."""
    out: Arrays = {}
    for name, x in case.tensors().items():
        if "input_linear" in name:
            half = x.shape[1] // 2
            out |= {name.replace("input_linear", "gate"): x[:, :half], name.replace("input_linear", "up"): x[:, half:]}
        else:
            out[name] = x
    return out


def metadata(c: Config) -> dict[str, Any]:
    return granite_keys(c) | expert_keys(c, "num_local_experts")


PLAIN = Case("f32", BASE, shapes, lengths=(12, 60))
SHORT = PLAIN.but(lengths=(40,))
CASES = (
    PLAIN,
    SHORT.set("no-scalars", **dict.fromkeys(SCALARS, ...)).but(seed=4),  # scores that are not divided amplify rounding
    SHORT.set("one-of-eight", num_local_experts=8, num_experts_per_tok=1, attention_bias=True),
    SHORT.set("bf16-tied", tie_word_embeddings=True, torch_dtype="bfloat16", num_key_value_heads=...).but(dtype="BF16"),
    SHORT.set("defaults", num_local_experts=..., num_experts_per_tok=..., attention_bias=..., rms_norm_eps=..., rope_theta=...,
              tie_word_embeddings=..., hidden_act=...),
)
MUTATIONS = {"num_experts_per_tok": ({}, 1)}
GGUF = Twin("granitemoe", NAMES | {f"{BLOCK}.router.layer": "ffn_gate_inp", f"{BLOCK}.gate": "ffn_gate_exps",
                                   f"{BLOCK}.up": "ffn_up_exps", f"{BLOCK}.output_linear": "ffn_down_exps"},
            metadata, permuted=True, changed=changed)
GGUF_CASES = (PLAIN, PLAIN.set("biases", attention_bias=True), PLAIN.set("tied", tie_word_embeddings=True))
GGUF_VARIANTS: dict[str, dict[str, Any]] = {"not-finetuned": {"keys": {"rope.scaling.finetuned": False}}}
