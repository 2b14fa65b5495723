"""DeepSeek and Kimi: what is dropped and why, one model in every form of file, the graph's shape, and what cannot be meant."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import parity
import pytest
from family_cases import deepseek2, deepseek_v2, deepseek_v3, kimi_k2
from quantised_gguf import meant, stored, write_stored
from refusals import refused, refused_config, refused_tensors
from tiny_models import Case, write_config, write_folder

from uaii.compiler import compile_model
from uaii.explanation import explain
from uaii.frontend.family import recognise
from uaii.frontend.open import open_checkpoint
from uaii.inspection import inspect

V3, V2, KIMI = deepseek_v3.SHORT, deepseek_v2.SHORT, kimi_k2.PLAIN
CONFIGS = Path(__file__).parent.parent / "data" / "configs"
EQUAL = 1e-4  # of the range: the same weights through two readers


def logits(folder: Path, case: Case, **options: Any) -> np.ndarray:
    return parity.session(folder, folder.parent / f"{folder.name}.out", **options).logits(case.prompts()[-1])


def file_logits(tmp_path: Path, twin: Any = deepseek2.GGUF, case: Case = deepseek2.PLAIN, **keys: Any) -> np.ndarray:
    return logits(twin.write(tmp_path, case, **keys), case)


# --- layers that predict further tokens

def test_layers_for_further_tokens_are_dropped_with_a_reason(tmp_path: Path) -> None:
    plain = logits(write_folder(tmp_path / "plain", V3), V3)
    more = V3.but(extra=deepseek_v3.MTP)
    folder = write_folder(tmp_path / "more", more)
    made = compile_model(folder, tmp_path / "out")
    rows = {row["tensor"]: row["use"] for row in made.manifest["tensors"]}
    for name in deepseek_v3.MTP:
        assert rows[name] == "dropped: predicts further tokens at once (MTP)"
    np.testing.assert_array_equal(logits(folder, V3), plain)


@pytest.mark.parametrize("keys", [{"num_nextn_predict_layers": 0}, {"num_nextn_predict_layers": ..., "num_mtp_layers": 0}])
def test_a_layer_that_is_not_declared_is_not_dropped(keys: dict[str, Any], tmp_path: Path) -> None:
    error = refused(write_folder(tmp_path, V3.set("undeclared", **keys).but(extra=deepseek_v3.MTP)))
    assert (error.code, "model.layers.4.eh_proj.weight" in error.says) == ("T202", True)
    beyond = {n.replace(".4.", ".5."): s for n, s in deepseek_v3.MTP.items()}
    assert refused(write_folder(tmp_path, V3.but(extra=beyond))).code == "T202"


# --- one computation under several names

def test_kimi_is_deepseek_v3(tmp_path: Path) -> None:
    remote = {"auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"}}
    kimi = write_folder(tmp_path / "kimi", KIMI.set("kimi", **remote))
    (kimi / "modeling_deepseek.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    theirs = write_folder(tmp_path / "v3", KIMI.set("v3", model_type="deepseek_v3"))
    np.testing.assert_array_equal(logits(kimi, KIMI), logits(theirs, KIMI))
    assert not (tmp_path / "ran").exists()
    assert [recognise(open_checkpoint(f)).name for f in (kimi, theirs)] == ["kimi_k2", "deepseek_v3"]
    write_config(kimi, {k: v for k, v in KIMI.config.items() if k != "model_type"})
    assert recognise(open_checkpoint(kimi)).name == "deepseek_v3"


def test_every_form_of_a_file_gives_the_folders_logits(tmp_path: Path) -> None:
    folder = logits(write_folder(tmp_path / "folder", deepseek2.PLAIN), deepseek2.PLAIN)
    split, legacy = (file_logits(tmp_path / name, twin) for name, twin in (("a", deepseek2.GGUF), ("b", deepseek2.LEGACY)))
    assert max(parity.difference(split, folder), parity.difference(legacy, folder)) < EQUAL
    np.testing.assert_array_equal(split, legacy)


def test_each_layer_is_one_node_of_attention_and_one_of_experts(tmp_path: Path) -> None:
    compile_model(write_folder(tmp_path / "model", V3), tmp_path / "out")
    model = onnx.load(str(tmp_path / "out" / "model.onnx"), load_external_data=False)
    kinds = [node.op_type for node in model.graph.node if node.domain == "ai.uaii"]
    assert (kinds.count("LatentAttention"), kinds.count("MixtureOfExperts")) == (4, 3)
    assert {o.domain for o in model.opset_import} <= {"", "ai.onnx", "com.microsoft", "ai.uaii"}


# --- quantised files

@pytest.mark.parametrize("twin", [deepseek2.GGUF, deepseek2.LEGACY], ids=["split", "legacy"])
@pytest.mark.parametrize("kinds", [{"weight": "Q8_0"}, {"ffn_gate_inp": "F32", "exps": "Q4_0", "attn": "Q8_0", "weight": "Q5_0"}],
                         ids=["Q8_0", "mixed"])
def test_a_quantised_file_is_its_values(twin: deepseek2.Latent, kinds: dict[str, str], tmp_path: Path) -> None:
    case = deepseek2.PLAIN.set("wide", qk_nope_head_dim=32, v_head_dim=32, q_lora_rank=32, moe_intermediate_size=64,
                               n_shared_experts=1, n_group=1, topk_group=1)
    keys = {k: v for k, v in twin.keys(case, {}).items() if "token" not in k}
    written = deepseek2.Latent(twin.arch, twin.names, lambda c: keys, permuted=False, legacy=twin.legacy)
    tensors = stored(case, kinds, 0.5, written)
    plain = write_stored(tmp_path / "plain.gguf", case, {n: ("F32", x) for n, x in meant(tensors).items()}, written)
    file, wanted = write_stored(tmp_path / "model.gguf", case, tensors, written), logits(plain, case)
    assert parity.difference(logits(file, case), wanted) <= EQUAL
    made = compile_model(file, tmp_path / "auto")
    held = {row["tensor"]: row["held"] for row in made.manifest["tensors"]}
    assert held["blk.1.ffn_gate_exps.weight"] == held["blk.1.attn_q_a.weight"] == "packed"
    one = "attn_kv_b" if twin.legacy else "attn_k_b"
    assert held[f"blk.1.{one}.weight"] == "dequantised to f32"


# --- what cannot be meant

@pytest.mark.parametrize(("case", "keys"), [
    (V3, {"scoring_func": "softmax"}), (V3, {"topk_method": "greedy"}), (V3, {"moe_layer_freq": 2}), (V3, {"topk_group": 5}),
    (V3, {"head_dim": 8}), (V3, {"qk_head_dim": 12}), (V3, {"num_key_value_heads": 2}), (V3, {"hidden_act": "gelu"}),
    (V3, {"num_experts_per_tok": 9}), (V2, {"scoring_func": "sigmoid"}), (V2, {"topk_method": "noaux_tc"}),
    (V2, {"norm_topk_prob": True}), (V2, {"mlp_bias": True}), (V2, {"moe_layer_freq": 2}), (V2, {"topk_group": 5}),
    (V2, {"qk_head_dim": 12}), (KIMI, {"topk_method": "greedy"})], ids=lambda x: x.name if isinstance(x, Case) else next(iter(x)))
def test_a_value_that_is_computed_nowhere_is_refused_by_name(case: Case, keys: dict[str, Any], tmp_path: Path) -> None:
    error = refused_config(write_folder(tmp_path, case), {**case.config, **keys})
    name, value = next(iter(keys.items()))
    assert (error.code, error.exit_code) == ("F103", 3)
    assert error.says.startswith(f"unsupported {name}={value}")


@pytest.mark.parametrize("keys", [{"n_group": 3}, {"n_group": 8}, {"num_experts_per_tok": 5}])
def test_experts_that_do_not_fit_their_groups_are_refused(keys: dict[str, int], tmp_path: Path) -> None:
    error = refused_config(write_folder(tmp_path, V3), {**V3.config, **keys})
    assert (error.code, error.exit_code) == ("F107", 4)


def test_absent_is_not_null(tmp_path: Path) -> None:
    """An absent rank of queries is 1536, null is none."""
    case = V3.set("null", q_lora_rank=None)
    error = refused_config(write_folder(tmp_path, case), {k: v for k, v in case.config.items() if k != "q_lora_rank"})
    assert (error.code, "self_attn.q_a_proj.weight" in error.says) == ("T201", True)


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    name = "model.layers.2.mlp.experts.6.up_proj.weight"
    error = refused_tensors(tmp_path, V3, {n: x for n, x in V3.tensors().items() if n != name})
    assert (error.code, name in error.says) == ("T201", True)


def test_a_wrong_count_of_experts_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, V3)
    for count, code in ((12, "T203"), (4, "T203")):  # the router has a row for each
        error = refused_config(folder, {**V3.config, "n_routed_experts": count})
        assert (error.code, "mlp.gate.weight" in error.says) == (code, True)


def test_a_bias_that_is_not_declared_is_a_stranger(tmp_path: Path) -> None:
    for name in ("model.layers.0.mlp.gate_proj.bias", "model.layers.0.self_attn.kv_a_proj_with_mqa.bias"):
        tensors = V3.tensors()
        extra = {name: np.zeros(tensors[name.replace("bias", "weight")].shape[0], np.float32)}
        assert refused_tensors(tmp_path, V3, tensors | extra).code == "T202"


@pytest.mark.parametrize(("keys", "name"), [
    ({"attention.value_length_mla": None}, "attention.value_length_mla"), ({"attention.key_length": 28}, "attention.key_length"),
    ({"attention.value_length": 20}, "attention.key_length"), ({"attention.head_count_kv": 4}, "attention.head_count_kv"),
    ({"attention.key_length_mla": 16}, "rope.dimension_count"), ({"expert_gating_func": 3}, "expert_gating_func"),
    ({"expert_used_count": 9}, "expert_used_count"), ({"expert_group_used_count": 4}, "expert_group_used_count"),
    ({"expert_group_used_count": None}, "expert_group_used_count"), ({"nextn_predict_layers": 4}, "nextn_predict_layers"),
    ({"attention.temperature_scale": 0.1}, "attention.temperature_length"),
    ({"expert_feed_forward_length": [48, 48, 48, 24]}, "expert_feed_forward_length")])
def test_a_file_that_llama_cpp_would_not_run_is_refused(keys: dict[str, Any], name: str, tmp_path: Path) -> None:
    error = refused(deepseek2.GGUF.write(tmp_path, deepseek2.PLAIN, **keys))
    assert (error.code, error.says.startswith(f"unsupported {name}")) == ("F103", True)


def test_the_rank_of_queries_is_not_read_of_a_lite_model(tmp_path: Path) -> None:
    lite = deepseek2.GGUF_CASES[-1]
    np.testing.assert_array_equal(file_logits(tmp_path / "a", case=lite, **{"attention.q_lora_rank": 24}),
                                  file_logits(tmp_path / "b", case=lite))


# --- published configurations

@pytest.mark.parametrize(("name", "family", "layers", "experts", "taken", "shared"), [
    ("Kimi-K2-Instruct", "kimi_k2", 61, 384, 8, 1), ("DeepSeek-V3", "deepseek_v3", 61, 256, 8, 1),
    ("DeepSeek-V2-Lite-Chat", "deepseek_v2", 27, 64, 6, 2)])
def test_published_configurations_are_planned(name: str, family: str, layers: int, experts: int, taken: int, shared: int,
                                              tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((CONFIGS / f"{name}.json").read_text())
    report = inspect(tmp_path)
    assert (report.family, [b.code for b in report.blockers]) == (family, ["H320"])  # FP8 is no blocker, absent weights are
    facts = report.facts
    assert facts["latent_attention"] == {"latent": 512, "rotated": 64}
    assert facts["kv_bytes_per_token"] == layers * (512 + 64) * 4
    moe = facts["moe"]
    assert (moe["experts"], moe["experts_used"], moe["shared_experts"]) == (experts, taken, shared)
    assert facts["artifact_bytes"] > 4 * experts * (layers - 3) * 3 * 2048 * 1408
    json.dumps(report.record())


def test_another_family_with_latent_attention_is_pointed_at_gguf(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, V3)
    error = refused_config(folder, {**V3.config, "model_type": "deepseek_v9", "architectures": ["DeepseekV9ForCausalLM"]})
    assert (error.code, "HF MLA; use GGUF" in (error.hint or "")) == ("F121", True)


def test_explain_says_what_a_token_keeps(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", V3)
    compile_model(folder, tmp_path / "out")
    for path in (folder, tmp_path / "out"):
        assert explain(path).summary()["kv_per_token"] == 4 * (32 + 16) * 4  # layers, latent and rotated features, f32
