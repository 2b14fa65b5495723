"""Every config key that a family reads does something: another value moves the logits, or is refused.

A change that the parity comparison could not see is no change here: the logits must move by more than its tolerance.
"""
from __future__ import annotations

from pathlib import Path

import all_cases
import numpy as np
import parity
import pytest
from family_cases import llama
from mutations import keys, mutation
from tiny_models import Case, write_config, write_folder

from uaii.frontend.family import Family, registry
from uaii.frontend.rope import PARAMS
from uaii.ir.diag import Diagnostic


def _families() -> dict[str, Family]:
    return {family.name: family for family in registry()[0].values()}


KEYS = [(name, key) for name in all_cases.families() if name in _families() for key in keys(_families()[name])]


def _case(name: str, before: dict[str, object]) -> Case:
    return all_cases.families()[name].CASES[0].set("mutation", **before)


def _outcome(folder: Path, out: Path, ids: list[int]) -> tuple[np.ndarray, int]:
    model = parity.session(folder, out)
    return model.logits(ids), model.context_length


def _moved(case: Case, key: str, value: object, tmp_path: Path) -> float | str:
    """How far the logits move when one key of the folder's config changes, or the code of its refusal."""
    folder = write_folder(tmp_path / "model", case)
    ids = case.prompts()[-1]
    before, reach = _outcome(folder, tmp_path / "before", ids)
    write_config(folder, {**case.config, key: value})
    try:
        after, reach_after = _outcome(folder, tmp_path / "after", ids)
    except Diagnostic as error:
        assert error.exit_code in (3, 4), error
        return error.code
    if key in ("max_position_embeddings", "n_positions", "model_max_length") and reach != reach_after and not case.by_length:
        return "context"
    return parity.difference(after, before)


@pytest.mark.parametrize(("name", "key"), KEYS, ids=[f"{name}-{key}" for name, key in KEYS])
def test_each_key_matters(name: str, key: str, tmp_path: Path) -> None:
    change = mutation(_families()[name], all_cases.families()[name], key)
    moved = _moved(_case(name, change.before), key, change.value, tmp_path)
    assert isinstance(moved, str) or moved > parity.TOLERANCE


def test_the_base_of_every_mutation_compiles() -> None:
    """Otherwise a mutation that is refused would show nothing: `_moved` compiles the base first, with the prompt whole."""
    for name, first in ((name, module.CASES[0]) for name, module in all_cases.families().items() if module.CASES):
        longest = max(first.lengths)
        assert first.config.get("max_position_embeddings", longest) >= longest, name


# --- every parameter of every rope type

FULL = {
    "linear": {"factor": 4.0}, "dynamic": {"factor": 4.0}, "llama3": llama.LLAMA3,
    "yarn": {"factor": 4.0, llama.ORIGINAL: 32, "beta_fast": 4.0, "beta_slow": 0.5, "truncate": False},
}
CHANGED = {"factor": 6.0, "low_freq_factor": 2.0, "high_freq_factor": 16.0, llama.ORIGINAL: 128, "beta_fast": 2.0,
           "beta_slow": 1.0, "truncate": True, "attention_factor": 1.5, "mscale": 0.7, "mscale_all_dim": 1.4}
ONLY_TOGETHER = {"mscale": {"mscale_all_dim": 1.0}, "mscale_all_dim": {"mscale": 1.0}}


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in FULL for n in PARAMS[k]])
def test_each_rope_parameter_matters(kind: str, name: str, tmp_path: Path) -> None:
    record = {"rope_type": kind, **FULL[kind], **ONLY_TOGETHER.get(name, {})}
    limit = 32 if kind == "dynamic" else 256
    case = llama.PLAIN.set("rope", rope_scaling=record, max_position_embeddings=limit)
    moved = _moved(case, "rope_scaling", {**record, name: CHANGED[name]}, tmp_path)
    assert isinstance(moved, float)
    assert moved > parity.TOLERANCE


@pytest.mark.parametrize("kind", FULL)
def test_each_rope_type_matters(kind: str, tmp_path: Path) -> None:
    case = llama.PLAIN.set("plain", max_position_embeddings=128)
    moved = _moved(case, "rope_scaling", {"rope_type": kind, **FULL[kind]}, tmp_path)
    assert isinstance(moved, float)
    assert moved > parity.TOLERANCE or kind == "dynamic"  # dynamic begins past the model's own length


def test_dynamic_rope_depends_on_the_original_length(tmp_path: Path) -> None:
    case = llama.PLAIN.set("dynamic", rope_scaling={"rope_type": "dynamic", "factor": 4.0}, max_position_embeddings=32)
    moved = _moved(case.but(by_length=True), "max_position_embeddings", 48, tmp_path)
    assert isinstance(moved, float)
    assert moved > parity.TOLERANCE
