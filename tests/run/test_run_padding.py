"""Padded prompts in one call give what each gives alone."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_artifact import tiny_model, write_artifact

from uaii.backends.ort.generate import generate, generate_batch
from uaii.backends.ort.padding import batch_logits, unpadded
from uaii.backends.ort.session import Session
from uaii.ir.diag import Usage

PROMPTS = [[5, 9, 2, 7, 1, 3, 8, 4, 6], [11, 3]]


@pytest.fixture(scope="module", params=[False, True], ids=["in place", "growing"])
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder: Path = tmp_path_factory.mktemp("padded") / "artifact"
    write_artifact(folder, tiny_model(learned=request.param))
    return Session.open(folder, threads=1)


def padded(side: str) -> tuple[np.ndarray, np.ndarray]:
    width = max(map(len, PROMPTS))
    ids, mask = np.zeros((2, width), np.int64), np.zeros((2, width), np.int64)
    for i, p in enumerate(PROMPTS):
        at = slice(0, len(p)) if side == "right" else slice(width - len(p), width)
        ids[i, at], mask[i, at] = p, 1
    return ids, mask


@pytest.mark.parametrize("side", ["left", "right"])
def test_each_row_has_the_logits_of_its_single_run(session: Session, side: str) -> None:
    ids, mask = padded(side)
    got = batch_logits(session, ids, mask)
    for i, prompt in enumerate(PROMPTS):
        np.testing.assert_allclose(got[i][mask[i] != 0], session.logits(prompt), atol=1e-5)
        assert not got[i][mask[i] == 0].any()


@pytest.mark.parametrize("side", ["left", "right"])
def test_each_row_generates_what_it_generates_alone(session: Session, side: str) -> None:
    rows = [r.tolist() for r in unpadded(*padded(side))]
    together = generate_batch(session, rows, max_new_tokens=8, ignore_eos=True)
    assert [r.tokens for r in together] == [generate(session, p, max_new_tokens=8, ignore_eos=True).run().tokens for p in PROMPTS]


@pytest.mark.parametrize("mask", [[[1, 0, 1]], [[0, 0, 0]], [[1, 1]]])
def test_a_mask_with_holes_is_refused(session: Session, mask: list[list[int]]) -> None:
    with pytest.raises(Usage) as caught:
        batch_logits(session, np.array([[1, 2, 3]]), np.array(mask))
    assert caught.value.code == "S614"
