"""Tiny DeepSeek V3 checkpoints: queries with and without a low rank, groups, YaRN's two corrections, dense layers, MTP."""
from __future__ import annotations

from typing import Any

from family_cases.llama import ORIGINAL
from tiny_models import Case, Config, Shape

YARN: Config = {"type": "yarn", "factor": 8.0, "mscale": 0.707, "mscale_all_dim": 1.0, ORIGINAL: 32, "beta_fast": 32,
                "beta_slow": 1}
BASE: Config = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 199, "hidden_size": 64,
    "intermediate_size": 96, "moe_intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 4, "n_shared_experts": 2, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4,
    "topk_group": 2, "routed_scaling_factor": 1.7, "norm_topk_prob": True, "first_k_dense_replace": 1, "kv_lora_rank": 32,
    "q_lora_rank": 24, "qk_rope_head_dim": 16, "qk_nope_head_dim": 12, "v_head_dim": 20, "hidden_act": "silu",
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": YARN, "attention_bias": False,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1, "num_nextn_predict_layers": 1, "ep_size": 1,
    "tie_word_embeddings": False, "torch_dtype": "float32",
}
SILENT: Config = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
                  "n_shared_experts": 1, "first_k_dense_replace": 3, "attention_bias": False}


def gated(stem: str, width: int, inner: int) -> dict[str, Shape]:
    """A gated MLP's three tensors."""
    return {f"{stem}.gate_proj.weight": (inner, width), f"{stem}.up_proj.weight": (inner, width),
            f"{stem}.down_proj.weight": (width, inner)}


def attention(at: str, c: Config) -> dict[str, Shape]:
    """The tensors of latent attention."""
    e, heads, rank = c["hidden_size"], c["num_attention_heads"], c["q_lora_rank"]
    turned, nope, latent = c["qk_rope_head_dim"], c["qk_nope_head_dim"], c["kv_lora_rank"]
    q = (heads * (nope + turned), rank or e)
    out = {f"{at}.kv_a_proj_with_mqa.weight": (latent + turned, e), f"{at}.kv_a_layernorm.weight": (latent,),
           f"{at}.kv_b_proj.weight": (heads * (nope + c["v_head_dim"]), latent),
           f"{at}.o_proj.weight": (e, heads * c["v_head_dim"]), f"{at}.{'q_b_proj' if rank else 'q_proj'}.weight": q}
    if rank:
        out |= {f"{at}.q_a_proj.weight": (rank, e), f"{at}.q_a_layernorm.weight": (rank,)}
    if c["attention_bias"]:
        biased = [n for n in ("q_a_proj", "kv_a_proj_with_mqa", "o_proj") if f"{at}.{n}.weight" in out]
        out |= {f"{at}.{n}.bias": out[f"{at}.{n}.weight"][:1] for n in biased}
    return out


def shapes(config: Config) -> dict[str, Shape]:
    """Names and shapes of a DeepSeek folder, from the published layout; V2's has no correction of the choice."""
    c, corrected = SILENT | config, config["model_type"] != "deepseek_v2"
    e, wide = c["hidden_size"], c["moe_intermediate_size"]
    out: dict[str, Shape] = {"model.embed_tokens.weight": (c["vocab_size"], e), "model.norm.weight": (e,)}
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}"
        out |= {f"{at}.input_layernorm.weight": (e,), f"{at}.post_attention_layernorm.weight": (e,)}
        out |= attention(f"{at}.self_attn", c)
        if i < c["first_k_dense_replace"]:
            out |= gated(f"{at}.mlp", e, c["intermediate_size"])
            continue
        out |= {f"{at}.mlp.gate.weight": (c["n_routed_experts"], e)}
        out |= {f"{at}.mlp.gate.e_score_correction_bias": (c["n_routed_experts"],)} if corrected else {}
        out |= gated(f"{at}.mlp.shared_experts", e, wide * c["n_shared_experts"])
        for j in range(c["n_routed_experts"]):
            out |= gated(f"{at}.mlp.experts.{j}", e, wide)
    if not c.get("tie_word_embeddings"):
        out["lm_head.weight"] = (c["vocab_size"], e)
    return out


def yarn(case: Case, name: str, **changes: Any) -> Case:
    """The case with entries of its rope record replaced; `...` removes one."""
    return case.set(name, rope_scaling={k: v for k, v in {**YARN, **changes}.items() if v is not ...})


MTP = {"model.layers.4.eh_proj.weight": (64, 128), "model.layers.4.enorm.weight": (64,),
       "model.layers.4.shared_head.head.weight": (199, 64)}
PLAIN = Case("plain", BASE, shapes, lengths=(1, 100), extra=MTP)
SHORT = PLAIN.but(lengths=(48,), extra={})
CASES = (
    PLAIN,
    SHORT.set("bf16").but(dtype="BF16"),
    SHORT.set("no-query-rank", q_lora_rank=None).but(lengths=(1, 60)),
    SHORT.set("one-group", n_group=1, topk_group=1),
    SHORT.set("all-groups", n_group=2, topk_group=2),
    SHORT.set("not-renormalised", norm_topk_prob=False),
    SHORT.set("biases", attention_bias=True),
    SHORT.set("biases-no-query-rank", attention_bias=True, q_lora_rank=None),
    SHORT.set("halves", rope_interleave=False),
    SHORT.set("all-experts", first_k_dense_replace=0),
    SHORT.set("all-dense", first_k_dense_replace=4),
    SHORT.set("tied", tie_word_embeddings=True),
    SHORT.set("no-scaling", rope_scaling=None),
    SHORT.set("linear", rope_scaling={"type": "linear", "factor": 4.0}, max_position_embeddings=64),
    yarn(SHORT, "mscale-one", mscale=1.0, mscale_all_dim=1.0),
    yarn(SHORT, "mscale-equal", mscale=0.707, mscale_all_dim=0.707).but(seed=1),
    yarn(SHORT, "mscale-absent", mscale=..., mscale_all_dim=...),
    yarn(SHORT, "mscale-of-all-alone", mscale=...),
    SHORT.set("version-5", rope_scaling=..., rope_theta=..., rope_parameters={**YARN, "rope_type": "yarn", "rope_theta": 5e4},
              head_dim=16, qk_head_dim=28, num_nextn_predict_layers=..., num_mtp_layers=1),
    # With both ranks and heads at their defaults scores are in the hundreds, and transformers is 5e-4 from itself in f64.
    SHORT.set("default-query-rank", q_lora_rank=...), SHORT.set("default-latent-rank", kv_lora_rank=...),
    SHORT.set("defaults", num_attention_heads=128, n_routed_experts=16, **dict.fromkeys(
        ("num_key_value_heads", "n_shared_experts", "num_experts_per_tok", "n_group", "topk_group", "routed_scaling_factor",
         "norm_topk_prob", "first_k_dense_replace", "qk_rope_head_dim", "qk_nope_head_dim",
         "v_head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "attention_bias",
         "scoring_func", "topk_method", "moe_layer_freq", "num_nextn_predict_layers", "ep_size", "tie_word_embeddings"), ...)),
)
MUTATIONS: dict[str, tuple[Config, Any]] = {
    "rms_norm_eps": ({}, 0.3), "n_group": ({}, 2), "topk_group": ({}, 3), "num_experts_per_tok": ({}, 2),
    "num_nextn_predict_layers": ({}, 0), "head_dim": ({}, 8), "qk_head_dim": ({}, 16), "num_key_value_heads": ({}, 2),
    "num_local_experts": ({}, 4),
}
