"""Live comparison with transformers on every tiny checkpoint, and the goldens against it."""
from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import all_cases
import parity
import pytest
from tiny_models import Case, write_folder

pytestmark = pytest.mark.reference


@pytest.fixture(scope="module")
def oracle() -> ModuleType:
    """Imported here, so that collecting the tests needs no torch."""
    return importlib.import_module("transformers_oracle")


@pytest.mark.parametrize(("family", "case"), all_cases.cases(), ids=all_cases.names())
def test_logits_and_tokens_are_those_of_transformers(oracle: ModuleType, family: str, case: Case,
                                                     tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", case)
    theirs = oracle.run(case, folder)
    model = parity.session(folder, tmp_path / "out")
    stored = parity.golden(family, case)["runs"]
    for prompt, expected, kept in zip(case.prompts(), theirs, stored, strict=True):
        assert parity.compare(parity.run(model, prompt), expected) <= parity.TOLERANCE
        assert parity.compare_with_golden(expected, kept) <= parity.TOLERANCE / 10, "run tests/goldens/make.py"
