"""Experts are chosen and weighed as the source says, all of them are needed, and what does not fit is refused by name."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
from click.testing import CliRunner
from family_cases import granitemoe, mixtral, olmoe, qwen2_moe, qwen3_moe
from gguf_twin import Twin
from refusals import refused, refused_config, refused_tensors
from tiny_models import Arrays, Case, write_folder, write_weights

from uaii.cli.inspect import main as command
from uaii.inspection import inspect

EQUAL, SEEN = 1e-4, 10 * parity.TOLERANCE  # of the range
FAMILIES = {"mixtral": mixtral.PLAIN, "qwen2_moe": qwen2_moe.DENSE, "qwen3_moe": qwen3_moe.DENSE, "olmoe": olmoe.PLAIN,
            "granitemoe": granitemoe.PLAIN}
SHARED = "model.layers.2.mlp.shared_expert"


def logits(checkpoint: Path, out: Path, case: Case) -> np.ndarray:
    return parity.session(checkpoint, out).logits(case.prompts()[-1])


def changed(case: Case, tmp_path: Path, **zeroed: float) -> float:
    """How far the logits move when tensors whose names end so are multiplied."""
    tensors = {n: x * np.float32(next((f for k, f in zeroed.items() if n.endswith(k)), 1)) for n, x in case.tensors().items()}
    plain = logits(write_folder(tmp_path / "plain", case), tmp_path / "plain.out", case)
    return parity.difference(logits(write_folder(tmp_path / "model", case, tensors), tmp_path / "out", case), plain)


# --- weights of the chosen experts

@pytest.mark.parametrize(("twin", "case", "always"), [
    (qwen2_moe.GGUF, qwen2_moe.PLAIN, False), (qwen3_moe.GGUF, qwen3_moe.PLAIN, True), (olmoe.GGUF, olmoe.PLAIN, False)],
    ids=["qwen2moe", "qwen3moe", "olmoe"])
@pytest.mark.parametrize("said", [False, True])
def test_a_file_renormalises_by_its_architecture_whatever_the_folder_said(twin: Twin, case: Case, always: bool, said: bool,
                                                                          tmp_path: Path) -> None:
    folders = [case.set(f"norm-{flag}", norm_topk_prob=flag) for flag in (always, not always)]
    same, other = (logits(write_folder(tmp_path / f.name, f), tmp_path / f"{f.name}.out", f) for f in folders)
    ours = logits(twin.write(tmp_path, case.set("file", norm_topk_prob=said)), tmp_path / "out", case)
    assert parity.difference(ours, same) <= EQUAL
    assert parity.difference(ours, other) > SEEN


@pytest.mark.parametrize("case", [qwen3_moe.PLAIN, qwen2_moe.PLAIN, olmoe.PLAIN], ids=["qwen3_moe", "qwen2_moe", "olmoe"])
def test_an_absent_norm_topk_prob_does_not_renormalise(case: Case, tmp_path: Path) -> None:
    said: dict[str, Any] = {"absent": ..., "off": False, "on": True}
    absent, off, on = (logits(write_folder(tmp_path / n, f), tmp_path / f"{n}.out", f)
                       for n, f in ((n, case.set(n, norm_topk_prob=v)) for n, v in said.items()))
    assert parity.difference(absent, off) == 0 and parity.difference(absent, on) > SEEN


def test_mixtral_always_renormalises(tmp_path: Path) -> None:
    """It has no such key, and a folder that states one is not guessed at."""
    folder = write_folder(tmp_path / "model", mixtral.PLAIN)
    error = refused_config(folder, mixtral.PLAIN.config | {"norm_topk_prob": False})
    assert (error.code, "norm_topk_prob" in error.says) == ("F101", True)


# --- the shared expert

@pytest.mark.parametrize("part", ["up_proj", "down_proj", "gate_proj"])
def test_the_shared_expert_counts(part: str, tmp_path: Path) -> None:
    assert changed(qwen2_moe.PLAIN, tmp_path, **{f"{SHARED}.{part}.weight"[1:]: 0.0}) > SEEN


@pytest.mark.parametrize("by", [0.0, -1.0, 8.0])
def test_the_gate_of_the_shared_expert_counts(by: float, tmp_path: Path) -> None:
    assert changed(qwen2_moe.PLAIN, tmp_path, **{f"{SHARED}_gate.weight"[1:]: by}) > SEEN


@pytest.mark.parametrize("name", FAMILIES)
def test_every_expert_counts(name: str, tmp_path: Path) -> None:
    """Each is chosen by some token of the prompt, and by no other's number."""
    case = FAMILIES[name]
    plain = logits(write_folder(tmp_path / "plain", case), tmp_path / "plain.out", case)
    for j in range(4):
        tensors = case.tensors()
        for n, x in tensors.items():
            if n.startswith("model.layers.2.") and "output_linear" in n:
                x[j] = 0
            elif n.startswith("model.layers.2.") and n.endswith((f"experts.{j}.w2.weight", f"experts.{j}.down_proj.weight")):
                x[:] = 0
        moved = logits(write_folder(tmp_path / f"{j}", case, tensors), tmp_path / f"{j}.out", case)
        assert parity.difference(moved, plain) > SEEN


# --- refusals

def without(tensors: Arrays, *endings: str) -> Arrays:
    return {n: x for n, x in tensors.items() if not n.endswith(endings)}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_missing_expert_is_named(name: str, tmp_path: Path) -> None:
    case = FAMILIES[name]
    lost = "2.block_sparse_moe.input_linear.weight" if name == "granitemoe" else next(
        n for n in case.tensors() if ".2." in n and "experts.1." in n)
    error = refused_tensors(tmp_path, case, without(case.tensors(), lost))
    assert (error.code, lost in error.says) == ("T201", True)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("count", [3, 5])
def test_another_number_of_experts_is_refused(name: str, count: int, tmp_path: Path) -> None:
    case = FAMILIES[name]
    key = "num_experts" if "num_experts" in case.config else "num_local_experts"
    error = refused_config(write_folder(tmp_path / "model", case), case.config | {key: count})
    assert (error.code, key in str(error)) == ("T203", True), error


def test_an_expert_beyond_the_count_is_refused(tmp_path: Path) -> None:
    extra = "model.layers.0.block_sparse_moe.experts.4.w1.weight"
    error = refused_tensors(tmp_path, mixtral.PLAIN, mixtral.PLAIN.tensors() | {extra: np.ones((96, 64), np.float32)})
    assert (error.code, extra in error.says) == ("T202", True)
    assert any("experts of a mixture of experts" in note for note in error.notes)


def test_an_expert_of_another_type_is_refused(tmp_path: Path) -> None:
    case, odd = mixtral.PLAIN, "model.layers.1.block_sparse_moe.experts.2.w3.weight"
    folder = write_folder(tmp_path / "model", case)
    write_weights(folder, {n: ("BF16" if n == odd else "F32", x) for n, x in case.tensors().items()})
    error = refused(folder)
    assert (error.code, error.exit_code) == ("T207", 4)
    assert error.says == f"tensor {odd} is stored as bf16, {odd.replace('experts.2', 'experts.0')} as f32"


KEYS: list[tuple[Case, dict[str, Any], str, str]] = [
    *((case, {"num_experts_per_tok": 5}, "F103", "unsupported num_experts_per_tok=5: there are 4 experts")
      for case in FAMILIES.values()),
    *((case, {"num_experts_per_tok": 0}, "F104", "num_experts_per_tok must be") for case in FAMILIES.values()),
    *((case, {"hidden_act": "gelu"}, "F103", "unsupported hidden_act=gelu: the experts compute with silu")
      for case in FAMILIES.values()),
    *((case, {"n_group": 2}, "F101", "n_group") for case in FAMILIES.values()),
    (mixtral.PLAIN, {"num_experts": 8}, "F108", "num_local_experts=4 and num_experts=8 are one setting"),
    (qwen3_moe.PLAIN, {"mlp_only_layers": [4]}, "F104", "mlp_only_layers must list layers from 0 to 3"),
    (qwen3_moe.PLAIN, {"mlp_only_layers": "1"}, "F104", "mlp_only_layers must list"),
    (qwen2_moe.PLAIN, {"mlp_only_layers": [True]}, "F104", "mlp_only_layers must list"),
    (qwen2_moe.PLAIN, {"decoder_sparse_step": 0}, "F104", "decoder_sparse_step must be"),
    (qwen2_moe.PLAIN, {"mlp_only_layers": [1]}, "T201", "model.layers.1.mlp.gate_proj.weight"),
    (qwen2_moe.PLAIN, {"use_sliding_window": True, "sliding_window": None}, "F103", "layers slide, but over no width"),
    (qwen2_moe.PLAIN, {"num_key_value_heads": None}, "F104", "num_key_value_heads must be"),
    (qwen3_moe.PLAIN, {"head_dim": None}, "F104", "head_dim must be"),
    (qwen3_moe.PLAIN, {"layer_types": ["full_attention"] * 4}, "F101", "layer_types"),
]


@pytest.mark.parametrize(("case", "keys", "code", "says"), KEYS, ids=[f"{c.config['model_type']}-{k}" for c, k, _, _ in KEYS])
def test_a_key_that_cannot_be_meant_is_refused(case: Case, keys: dict[str, Any], code: str, says: str, tmp_path: Path) -> None:
    error = refused_config(write_folder(tmp_path / "model", case), case.config | keys)
    assert (error.code, says in error.says) == (code, True), error


def one_by_one(tensors: Arrays) -> Arrays:
    """Experts as files had them before llama.cpp stacked them."""
    out: Arrays = {}
    for name, x in tensors.items():
        stem, stacked, _ = name.partition("_exps.")
        out |= {f"{stem}.{j}.weight": part for j, part in enumerate(x)} if stacked else {name: x}
    return out


def with_shared(tensors: Arrays) -> Arrays:
    return tensors | {"blk.0.ffn_up_shexp.weight": np.ones((32, 64), np.float32)}


FILES: list[tuple[Twin, Case, dict[str, Any], Callable[[Arrays], Arrays], str, str]] = [
    (mixtral.GGUF, mixtral.PLAIN, {}, one_by_one, "T201", "blk.0.ffn_gate_exps.weight"),
    (mixtral.GGUF, mixtral.PLAIN, {}, with_shared, "T202", "blk.0.ffn_up_shexp.weight"),
    (granitemoe.GGUF, granitemoe.PLAIN, {}, with_shared, "T202", "blk.0.ffn_up_shexp.weight"),
    (mixtral.GGUF, mixtral.PLAIN, {"expert_used_count": None}, dict, "F103", "expert_used_count"),
    (mixtral.GGUF, mixtral.PLAIN, {"expert_used_count": 5}, dict, "F103", "there are 4 experts"),
    (mixtral.GGUF, mixtral.PLAIN, {"expert_used_count": [2, 1, 2, 2]}, dict, "F103", "the layers differ in it"),
    (mixtral.GGUF, mixtral.PLAIN, {"expert_count": None}, dict, "F103", "expert_used_count=2: there are 0 experts"),
    (mixtral.GGUF, mixtral.PLAIN, {"expert_count": 8}, dict, "T203", "blk.0.ffn_gate_inp.weight"),
    (mixtral.GGUF, mixtral.PLAIN, {"expert_group_count": 3}, dict, "F103", "expert_group_count=3: there are 4 experts"),
    (mixtral.GGUF, mixtral.PLAIN, {"expert_group_count": 4}, dict, "F103", "expert_group_count=4: there are 4 experts"),
    (mixtral.GGUF, mixtral.PLAIN, {"expert_group_count": 2}, dict, "F103", "expert_group_used_count"),
    (mixtral.GGUF, mixtral.PLAIN, {"expert_gating_func": 2}, dict, "F101", "llama.expert_gating_func"),
    (qwen2_moe.GGUF, qwen2_moe.PLAIN, {"expert_count": None}, dict, "F102", "qwen2moe.expert_count"),
    (qwen3_moe.GGUF, qwen3_moe.PLAIN, {"expert_used_count": None}, dict, "F102", "expert_used_count"),
    (qwen3_moe.GGUF, qwen3_moe.PLAIN, {"leading_dense_block_count": 1}, dict, "F101", "leading_dense_block_count"),
    (olmoe.GGUF, olmoe.PLAIN, {"attention.clamp_kqv": 1.0}, dict, "F101", "olmoe.attention.clamp_kqv"),
    (granitemoe.GGUF, granitemoe.PLAIN, {"expert_shared_feed_forward_length": 32}, dict, "F101",
     "expert_shared_feed_forward_length"),
]


@pytest.mark.parametrize(("twin", "case", "keys", "change", "code", "says"), FILES,
                         ids=[f"{f[0].arch}-{','.join(f[2]) or f[3].__name__}" for f in FILES])
def test_a_file_that_cannot_be_meant_is_refused(twin: Twin, case: Case, keys: dict[str, Any], change: Callable[[Arrays], Arrays],
                                                code: str, says: str, tmp_path: Path) -> None:
    error = refused(twin.write(tmp_path, case, change(twin.tensors(case)), **keys))
    assert (error.code, says in str(error)) == (code, True), error


@pytest.mark.parametrize(("twin", "case"), [(qwen2_moe.GGUF, qwen2_moe.PLAIN), (olmoe.GGUF, olmoe.PLAIN)],
                         ids=["qwen2moe", "olmoe"])
def test_these_files_have_a_head_of_their_own(twin: Twin, case: Case, tmp_path: Path) -> None:
    error = refused(twin.write(tmp_path, case, without(twin.tensors(case), "output.weight")))
    assert (error.code, "output.weight" in error.says) == ("T201", True)


# --- reports

@pytest.mark.parametrize("name", FAMILIES)
def test_inspect_names_the_experts(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", FAMILIES[name])
    assert inspect(folder).facts["moe"] == {"experts": 4, "experts_used": 2}
    assert "moe=4 experts, 2 for each token" in CliRunner().invoke(command, [str(folder)]).stdout.splitlines()
