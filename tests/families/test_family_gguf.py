"""A family written as llama.cpp's converter writes it gives the folder's logits, and every key of the file counts."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import all_cases
import numpy as np
import parity
import pytest
from gguf_twin import Twin
from tiny_models import Arrays, Case, write_folder

from uaii.ir.diag import Diagnostic

EQUAL = 1e-4  # of the range: the same weights through two readers
TWINS = {name: module for name, module in all_cases.families().items() if isinstance(getattr(module, "GGUF", None), Twin)}
PAIRS = [pytest.param(module.GGUF, case, id=f"{name}-{case.name}")
         for name, module in TWINS.items() for case in module.GGUF_CASES]
FIRST = [pytest.param(module.GGUF, module.GGUF_CASES[0], id=name) for name, module in TWINS.items()]


def _keys() -> list[object]:
    return [pytest.param(module.GGUF, module.GGUF_CASES[0], key, id=f"{name}-{key}") for name, module in TWINS.items()
            for key in module.GGUF.metadata(module.GGUF_CASES[0].config) if key not in module.GGUF.spare]


def _logits(checkpoint: Path, out: Path, case: Case) -> np.ndarray:
    return parity.session(checkpoint, out).logits(case.prompts()[-1])


def _distance(tmp_path: Path, twin: Twin, case: Case, tensors: Arrays) -> float:
    """Of the GGUF's logits from the folder's, over the longest prompt."""
    folder = _logits(write_folder(tmp_path / "model", case), tmp_path / "folder.out", case)
    return parity.difference(_logits(twin.write(tmp_path, case, tensors), tmp_path / "gguf.out", case), folder)


@pytest.mark.parametrize(("twin", "case"), PAIRS)
def test_a_gguf_gives_the_folders_logits(twin: Twin, case: Case, tmp_path: Path) -> None:
    assert _distance(tmp_path, twin, case, twin.tensors(case)) <= EQUAL


@pytest.mark.parametrize(("twin", "case"), FIRST)
def test_fused_projections_are_the_same(twin: Twin, case: Case, tmp_path: Path) -> None:
    assert _distance(tmp_path, twin, case, twin.tensors(case, fused=True)) <= EQUAL


@pytest.mark.parametrize(("twin", "case"), FIRST)
def test_rows_in_the_other_order_are_seen(twin: Twin, case: Case, tmp_path: Path) -> None:
    """The negative control: were the order of q and k rows confused, the comparison above would fail by this much."""
    tensors = twin.tensors(case, permuted=not twin.permuted)
    assert _distance(tmp_path, twin, case, tensors) > 10 * parity.TOLERANCE


@pytest.mark.parametrize(("twin", "case"), FIRST)
def test_each_tensor_is_needed_or_changes_the_logits(twin: Twin, case: Case, tmp_path: Path) -> None:
    """Of layer 1 and outside the layers; a file may leave out biases, and its head where llama.cpp ties it."""
    tensors = twin.tensors(case)
    for name in (n for n in tensors if n.startswith("blk.1.") or "blk" not in n):
        rest = {n: x for n, x in tensors.items() if n != name}
        try:
            parity.session(twin.write(tmp_path, case, rest), tmp_path / "out")
        except Diagnostic as error:
            assert (error.code, name in error.says) == ("T201", True)
        else:
            assert name == "output.weight" or name.endswith(twin.optional)


@pytest.mark.parametrize(("twin", "case"), FIRST)
def test_a_tensor_that_nobody_uses_is_an_error(twin: Twin, case: Case, tmp_path: Path) -> None:
    for extra in ("blk.0.ffn_down.scale", "blk.0.attn_output.bias.extra", "blk.9.attn_q.weight"):
        with pytest.raises(Diagnostic) as caught:
            parity.session(twin.write(tmp_path, case, {**twin.tensors(case), extra: np.ones(8, np.float32)}), tmp_path / "out")
        assert (caught.value.code, extra in caught.value.says) == ("T202", True)


def _other(key: str, value: Any) -> Any:
    """Another value of the same type."""
    match value:
        case bool():
            return not value
        case list():
            return [not flag for flag in value]
        case int():
            return value // 2
        case _:
            return 0.3 if key.endswith("epsilon") else value * 3


@pytest.mark.parametrize(("twin", "case", "key"), _keys())
def test_each_key_of_a_gguf_is_read(twin: Twin, case: Case, key: str, tmp_path: Path) -> None:
    """A changed value changes the logits or the context, or is refused."""
    value = twin.metadata(case.config)[key]
    changed = _other(key, value)
    tensors = twin.tensors(case)
    try:
        model = parity.session(twin.write(tmp_path, case, tensors, **{key: changed}), tmp_path / "out")
    except Diagnostic as error:
        assert error.exit_code in (3, 4)
        return
    if key == "context_length":
        assert model.context_length == changed
        return
    plain = _logits(twin.write(tmp_path, case, tensors), tmp_path / "plain", case)
    assert parity.difference(model.logits(case.prompts()[-1]), plain) > EQUAL


@pytest.mark.parametrize(("twin", "case"), FIRST)
def test_a_missing_epsilon_is_an_error(twin: Twin, case: Case, tmp_path: Path) -> None:
    name = next(k for k in twin.metadata(case.config) if k.endswith("epsilon"))
    with pytest.raises(Diagnostic) as caught:
        parity.session(twin.write(tmp_path, case, **{name: None}), tmp_path / "out")
    assert (caught.value.code, name in caught.value.says) == ("F102", True)
