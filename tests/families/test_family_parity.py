"""Each tiny checkpoint gives the logits and greedy tokens that transformers gave when the goldens were made."""
from __future__ import annotations

import json
from pathlib import Path

import all_cases
import parity
import pytest
from tiny_models import Case, write_folder

from uaii.frontend.family import registry


@pytest.mark.parametrize(("family", "case"), all_cases.cases(), ids=all_cases.names())
def test_logits_and_tokens_are_those_of_the_reference(family: str, case: Case, tmp_path: Path) -> None:
    expected = parity.golden(family, case)["runs"]
    model = parity.session(write_folder(tmp_path / "model", case), tmp_path / "out")
    assert model.manifest.family == family
    for prompt, theirs in zip(case.prompts(), expected, strict=True):
        assert parity.compare_with_golden(parity.run(model, prompt), theirs) <= parity.TOLERANCE


def test_every_declared_family_has_cases() -> None:
    declared = {family.name for table in registry() for family in table.values()}
    assert declared == set(all_cases.families())


def test_cases_are_deep_long_and_named_once() -> None:
    """A shallow model or a short prompt cannot show what a window or a scaled rotation does."""
    for family, module in all_cases.families().items():
        names = [case.name for case in module.CASES]
        assert len(names) == len(set(names)), family
        for case in module.CASES:
            assert case.config.get("num_hidden_layers", case.config.get("n_layer")) >= 4, (family, case.name)
            assert max(case.lengths) >= 40, (family, case.name)


def test_no_golden_is_left_without_its_case() -> None:
    for path in parity.GOLDENS.glob("*.json"):
        kept = set(json.loads(path.read_text()))
        assert kept == {case.name for case in all_cases.families()[path.stem].CASES}, path.name


def test_goldens_stay_small() -> None:
    assert sum(path.stat().st_size for path in parity.GOLDENS.glob("*.json")) < 360_000
