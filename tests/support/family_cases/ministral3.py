"""Tiny Ministral 3 checkpoints: a temperature that begins after 16 tokens, beside YaRN and beside no scaling, windows, ties."""
from __future__ import annotations

from typing import Any

from family_cases.llama import BASE as LLAMA
from family_cases.llama import ORIGINAL
from family_cases.llama import shapes as llama_shapes
from gguf_twin import LLAMA_NAMES, Twin, sizes
from tiny_models import Case, Config, Shape

BETA = "llama_4_scaling_beta"
YARN: Config = {"rope_type": "yarn", "type": "yarn", "rope_theta": 1e4, "factor": 4.0, ORIGINAL: 16, "beta_fast": 0.5,
                "beta_slow": 0.2, "mscale": 1.0, "mscale_all_dim": 0.5, BETA: 0.3}
BASE: Config = {k: v for k, v in LLAMA.items() if k not in ("attention_bias", "mlp_bias", "rope_theta")} | {
    "architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", "head_dim": 16, "sliding_window": None,
    "rope_parameters": YARN}


def shapes(c: Config) -> dict[str, Shape]:
    """Llama's; eight key heads, and heads of 128, when the config is silent."""
    return llama_shapes({"num_key_value_heads": 8, "head_dim": 128, **c})


def rope(name: str, **changes: Any) -> Case:
    """The case with entries of its rope record replaced; `...` removes one."""
    return PLAIN.set(name, rope_parameters={k: v for k, v in {**YARN, **changes}.items() if v is not ...})


PLAIN = Case("plain", BASE, shapes)
UNSCALED: Config = {"rope_type": "default", "rope_theta": 1e4, ORIGINAL: 16, BETA: 0.3}
CASES = (
    PLAIN,
    rope("mscale-one", mscale_all_dim=1.0, max_position_embeddings=256).but(dtype="BF16"),
    rope("no-mscale", mscale=..., mscale_all_dim=..., beta_fast=..., beta_slow=...),
    rope("steep", **{BETA: 1.5, ORIGINAL: 7}),
    rope("falling", **{BETA: -0.2}),
    rope("beta-0", **{BETA: 0.0}),
    rope("no-original", **{ORIGINAL: ...}).set("no-original", max_position_embeddings=64),
    PLAIN.set("original-on-top", **{ORIGINAL: 24}),
    PLAIN.set("unscaled", rope_parameters=UNSCALED),
    PLAIN.set("linear", rope_parameters={**UNSCALED, "rope_type": "linear", "factor": 2.5}),
    PLAIN.set("as-scaling", rope_parameters=..., rope_theta=5e4,
              rope_scaling={k: v for k, v in YARN.items() if k != "rope_theta"}),
    PLAIN.set("window", sliding_window=8).but(lengths=(9, 60)),
    PLAIN.set("tied-wide-heads", head_dim=32, tie_word_embeddings=True).but(seed=1),
    PLAIN.set("defaults", rope_parameters=..., num_attention_heads=8, num_key_value_heads=..., head_dim=..., sliding_window=...,
              rms_norm_eps=..., hidden_act=..., tie_word_embeddings=..., max_position_embeddings=...).but(lengths=(40,)),
)
MUTATIONS: dict[str, tuple[Config, Any]] = {
    "head_dim": ({}, 32), "num_key_value_heads": ({}, 1), "rms_norm_eps": ({}, 0.3), ORIGINAL: ({}, 32),
    "rope_parameters": ({}, {**YARN, BETA: 0.6}),
    "rope_theta": ({"rope_parameters": {k: v for k, v in YARN.items() if k != "rope_theta"}, "rope_theta": 1e4}, 5e5),
}


# --- the same weights as llama.cpp's converter writes them

def _metadata(c: Config) -> dict[str, Any]:
    record = c.get("rope_parameters") or {**YARN, "rope_theta": c.get("rope_theta", 1e4)}
    names = {"factor": "factor", ORIGINAL: "original_context_length", "beta_fast": "yarn_beta_fast",
             "beta_slow": "yarn_beta_slow", "mscale_all_dim": "yarn_log_multiplier"}
    scaled = {f"rope.scaling.{theirs}": record[k] for k, theirs in names.items() if k in record}
    return sizes({**c, "rope_theta": record["rope_theta"]}) | scaled | {
        "rope.scaling.type": {"default": "none"}.get(record["rope_type"], record["rope_type"]),
        "attention.temperature_scale": record[BETA]}


GGUF = Twin("mistral3", LLAMA_NAMES, _metadata, permuted=True)
GGUF_CASES = (PLAIN, rope("mscale-one", mscale_all_dim=1.0), rope("no-mscale", mscale=..., mscale_all_dim=..., beta_fast=...,
              beta_slow=...), rope("steep", **{BETA: 1.5, ORIGINAL: 7}), rope("falling", **{BETA: -0.2}),
              rope("beta-0", **{BETA: 0.0}), PLAIN.set("unscaled", rope_parameters=UNSCALED),
              PLAIN.set("tied", tie_word_embeddings=True))
