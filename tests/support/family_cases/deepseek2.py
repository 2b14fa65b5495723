"""Tiny DeepSeek checkpoints as llama.cpp's converter writes them: latent heads split or not, experts in stacks, groups, YaRN."""
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from family_cases import deepseek_v2, deepseek_v3
from family_cases.llama import GGUF_NAMES as LLAMA_NAMES
from family_cases.llama import GGUF_OUTSIDE, ORIGINAL
from gguf_twin import Twin
from tiny_models import Arrays, Case, Config, values

CASES: tuple[Case, ...] = ()  # in folders it is deepseek_v2, deepseek_v3 and kimi_k2
NAMES = {**LLAMA_NAMES, "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
         "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
         "self_attn.kv_a_layernorm": "attn_kv_a_norm", "mlp.gate": "ffn_gate_inp",
         **{f"mlp.shared_experts.{n}_proj": f"ffn_{n}_shexp" for n in ("gate", "up", "down")}}
EXPERT = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(\w+)_proj\.weight")
CORRECTION = "mlp.gate.e_score_correction_bias"


@dataclass(frozen=True)
class Latent(Twin):
    """The converter's work: experts in stacks, and keys and values of the latent apart unless `legacy`."""

    legacy: bool = False

    def tensors(self, case: Case, *, permuted: bool | None = None, fused: bool = False) -> Arrays:
        """`permuted` is a broken file, whose rotated rows stand as halves; `fused` stacks gate and up of the experts."""
        c, out, stacks = case.config, Arrays(), dict[str, list[np.ndarray]]()
        for name, x in case.tensors().items():
            if found := EXPERT.fullmatch(name):
                stacks.setdefault(f"blk.{found[1]}.ffn_{found[3]}_exps.weight", []).append(x)
                continue
            if name in GGUF_OUTSIDE:
                out[GGUF_OUTSIDE[name]] = x
                continue
            _, _, i, inner = name.split(".", 3)
            part, kind = inner.rsplit(".", 1)
            if part == "self_attn.kv_b_proj":
                out |= self._kv(f"blk.{i}", x, c)
            elif inner == CORRECTION:
                out[f"blk.{i}.exp_probs_b.bias"] = x
            elif i == str(c["num_hidden_layers"]):
                out[f"blk.{i}.nextn.{part.replace('shared_head.head', 'shared_head_head')}.{kind}"] = x
            else:
                turned = permuted and NAMES[part] in ("attn_q_b", "attn_q")
                out[f"blk.{i}.{NAMES[part]}.{kind}"] = halves(x, c) if turned else x
        out |= {n: np.stack(parts) for n, parts in stacks.items()}
        return merged(out, case) if fused else out

    def _kv(self, at: str, x: np.ndarray, c: Config) -> Arrays:
        if self.legacy:
            return {f"{at}.attn_kv_b.weight": x}
        heads = x.reshape(c["num_attention_heads"], -1, x.shape[1])
        k, v = np.split(heads, [c["qk_nope_head_dim"]], axis=1)
        return {f"{at}.attn_k_b.weight": k.swapaxes(1, 2), f"{at}.attn_v_b.weight": v}

    def keys(self, case: Case, changes: Mapping[str, Any]) -> dict[str, Any]:
        c = case.config
        whole = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
        legacy = {"attention.head_count_kv": c["num_attention_heads"], "attention.key_length": whole,
                  "attention.value_length": c["v_head_dim"], "attention.key_length_mla": None, "attention.value_length_mla": None}
        return super().keys(case, (legacy if self.legacy else {}) | dict(changes))


def halves(x: np.ndarray, c: Config) -> np.ndarray:
    """Each head's rotated rows with even ones first: what a reader would see that took neighbours for halves."""
    heads = x.reshape(c["num_attention_heads"], -1, x.shape[1]).copy()
    turned = heads[:, c["qk_nope_head_dim"]:]
    heads[:, c["qk_nope_head_dim"]:] = np.concatenate([turned[:, ::2], turned[:, 1::2]], axis=1)
    return heads.reshape(x.shape)


def merged(tensors: Arrays, case: Case) -> Arrays:
    """Gate and up of the experts in one tensor."""
    gates = [n for n in tensors if "ffn_gate_exps" in n]
    both = {n.replace("gate", "gate_up"): np.concatenate([tensors[n], tensors[n.replace("gate", "up")]], axis=1) for n in gates}
    return {n: x for n, x in tensors.items() if "_exps" not in n or "down" in n} | both


def uncorrected(tensors: Arrays, case: Case) -> Arrays:
    """No correction of the choice, as files of DeepSeek V2 have none."""
    return {n: x for n, x in tensors.items() if "exp_probs_b" not in n}


def further(tensors: Arrays, case: Case) -> Arrays:
    """A layer more, which predicts further tokens: the last one's tensors, and its own."""
    last = f"blk.{case.config['num_hidden_layers'] - 1}."
    at, e = f"blk.{case.config['num_hidden_layers']}.", case.config["hidden_size"]
    own = {f"{at}nextn.eh_proj.weight": (e, 2 * e), f"{at}nextn.enorm.weight": (e,), f"{at}nextn.hnorm.weight": (e,)}
    return tensors | {n.replace(last, at): x for n, x in tensors.items() if n.startswith(last)} | {
        n: values(n, shape, case.seed) for n, shape in own.items()}


def metadata(c: Config) -> dict[str, Any]:
    """The converter's keys, without the architecture's prefix."""
    latent, turned = c["kv_lora_rank"], c["qk_rope_head_dim"]
    record, sigmoid = c.get("rope_scaling"), c["scoring_func"] == "sigmoid"
    scaling = {} if record is None else {
        "rope.scaling.type": "yarn", "rope.scaling.factor": record["factor"],
        "rope.scaling.original_context_length": record[ORIGINAL]} | (
        {"rope.scaling.yarn_log_multiplier": 0.1 * record["mscale_all_dim"]} if "mscale_all_dim" in record else {})
    groups = {"expert_group_count": c["n_group"], "expert_group_used_count": c["topk_group"]} if c["n_group"] else {}
    rank = {"attention.q_lora_rank": c["q_lora_rank"]} if c["q_lora_rank"] else {}
    return {"context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"],
            "block_count": c["num_hidden_layers"], "feed_forward_length": c["intermediate_size"],
            "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": 1,
            "attention.layer_norm_rms_epsilon": float(c["rms_norm_eps"]), "rope.dimension_count": turned,
            "attention.key_length": latent + turned, "attention.value_length": latent, "rope.freq_base": float(c["rope_theta"]),
            "attention.key_length_mla": c["qk_nope_head_dim"] + turned, "attention.value_length_mla": c["v_head_dim"],
            "attention.kv_lora_rank": latent, **rank, "leading_dense_block_count": c["first_k_dense_replace"],
            "expert_count": c["n_routed_experts"], "expert_used_count": c["num_experts_per_tok"],
            "expert_feed_forward_length": c["moe_intermediate_size"], "expert_shared_count": c["n_shared_experts"], **groups,
            "expert_weights_scale": float(c["routed_scaling_factor"]), "expert_weights_norm": c["norm_topk_prob"],
            "expert_gating_func": 2 if sigmoid else 1, **scaling}


GGUF = Latent("deepseek2", NAMES, metadata, permuted=False, optional=("exp_probs_b.bias",))
LEGACY = Latent("deepseek2", NAMES, metadata, permuted=False, optional=("exp_probs_b.bias",), legacy=True)
# transformers fixes the eps of the latent norms at 1e-6, llama.cpp takes the file's: equal where the file says 1e-6
PLAIN = deepseek_v3.yarn(deepseek_v3.SHORT, "plain", mscale=1.0, mscale_all_dim=1.0).set(
    "plain", rms_norm_eps=1e-6, num_nextn_predict_layers=0, max_position_embeddings=512)
LITE: Config = {"q_lora_rank": None, "num_hidden_layers": 27, "rms_norm_eps": 1e-6, "max_position_embeddings": 256}
GGUF_CASES = (
    PLAIN,
    deepseek_v3.yarn(PLAIN, "mscale-equal", mscale=0.707, mscale_all_dim=0.707),
    PLAIN.set("no-scaling", rope_scaling=None, first_k_dense_replace=0),
    PLAIN.set("one-group", n_group=1, topk_group=1, norm_topk_prob=False, tie_word_embeddings=True),
    deepseek_v2.GREEDY.set("softmax", rms_norm_eps=1e-6, rope_scaling=None),
    deepseek_v2.GREEDY.set("lite", n_group=None, topk_group=None, rope_scaling=None, **LITE),
)
LOG, FACTOR, LINEAR = "rope.scaling.yarn_log_multiplier", "rope.scaling.attn_factor", {"rope.scaling.type": "linear"}
# Files that differ from the first in keys, in what becomes of the tensors, or in form.
GGUF_VARIANTS: dict[str, dict[str, Any]] = {
    "legacy": {"twin": LEGACY}, "legacy-linear": {"twin": LEGACY, "keys": LINEAR},
    "yarn-silent": {"keys": {LOG: None}}, "yarn-silent-attn-factor": {"keys": {LOG: None, FACTOR: 1.3}},
    "yarn-log-zero": {"keys": {LOG: 0.0}}, "yarn-log-large": {"keys": {LOG: 0.23}},
    "yarn-log-attn-factor": {"keys": {FACTOR: 1.3}}, "linear-log": {"keys": LINEAR},
    "linear-attn-factor": {"keys": {**LINEAR, FACTOR: 1.3, LOG: None}},
    "none-attn-factor": {"keys": {"rope.scaling.type": "none", FACTOR: 1.3}},
    "softmax-in-groups": {"keys": {"expert_gating_func": 1}},
    "gating-silent": {"keys": {"expert_gating_func": None}, "change": uncorrected},
    "weights-silent": {"keys": {"expert_weights_norm": None, "expert_weights_scale": None}},
    "weights-scale-zero": {"keys": {"expert_weights_scale": 0.0}},
    "groups-silent": {"keys": {"expert_group_count": None, "expert_group_used_count": None}},
    "fused-experts": {"change": merged},
    "further-layer": {"keys": {"nextn_predict_layers": 1, "block_count": 5}, "change": further},
    "temperature": {"keys": {"attention.temperature_scale": 0.3, "attention.temperature_length": 16}},
    "large-eps": {"keys": {"attention.layer_norm_rms_epsilon": 0.1}},
    "experts-per-layer": {"keys": {"expert_feed_forward_length": [48] * 4}},
}
