"""Llama 3's scaling is read back from a GGUF's divisors, and a tensor that is none is refused."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from uaii.frontend.llama3_divisors import recover
from uaii.ir.diag import Malformed
from uaii.ir.loc import File

HERE = File("m.gguf")


def published(factor: float, theta: float = 500000.0, dim: int = 128, high: float = 4.0, original: float = 8192) -> np.ndarray:
    """As the converter writes them (transformers' rule, branch by branch, in f32 at the end)."""
    out = []
    for i in range(0, dim, 2):
        freq = theta ** -(i / dim)
        wave = 2 * np.pi / freq
        if wave < original / high:
            out.append(1.0)
        elif wave > original:
            out.append(factor)
        else:
            smooth = (original / wave - 1) / (high - 1)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, np.float32)


@pytest.mark.parametrize("case", [{"factor": 8.0}, {"factor": 32.0, "dim": 64}, {"factor": 4.0, "high": 3.0, "original": 1024},
                                  {"factor": 8.0, "theta": 10000.0}])
def test_published_scalings_are_recovered(case: dict[str, Any]) -> None:
    found = recover(published(**case), case.get("theta", 500000.0), case.get("dim", 128), HERE)
    assert found == pytest.approx({"factor": case["factor"], "low_freq_factor": 1.0, "high_freq_factor": case.get("high", 4.0),
                                   "original_max_position_embeddings": case.get("original", 8192)}, rel=1e-3)


@pytest.mark.parametrize("at", [0, 20, 30, 40, 63])
@pytest.mark.parametrize("by", [1.01, 0.9, 2.0])
def test_one_changed_entry_is_refused(at: int, by: float) -> None:
    wrong = published(8.0)
    wrong[at] *= by
    with pytest.raises(Malformed) as caught:
        recover(wrong, 500000.0, 128, HERE)
    assert caught.value.code == "T206"


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0, -8.0])
def test_what_is_no_divisor_is_refused(bad: float) -> None:
    wrong = published(8.0)
    wrong[5] = bad
    with pytest.raises(Malformed) as caught:
        recover(wrong, 500000.0, 128, HERE)
    assert caught.value.code == "T206"


def test_a_tiny_head_tells_its_factor_only() -> None:
    assert recover(np.array([1, 1, 8, 8], np.float32), 10000.0, 8, HERE) == {"factor": 8.0}
    assert recover(np.ones(4, np.float32), 10000.0, 8, HERE) == {"factor": 1.0}
    with pytest.raises(Malformed):
        recover(np.array([1, 8, 1, 8], np.float32), 10000.0, 8, HERE)
