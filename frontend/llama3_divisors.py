"""Llama 3's rope scaling, which a GGUF keeps only as a tensor of frequency divisors, taken apart again."""
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from uaii.ir import loc as L
from uaii.ir.diag import Malformed

Floats = NDArray[np.float64]
NEAR = 1e-4  # relative; the tensor is f32, and some writers computed it in f32


def divisors(freqs: Floats, factor: float, low: float, high: float, original: float) -> Floats:
    """f / f' of transformers' llama3 scaling (modeling_rope_utils), per frequency."""
    turns = original * freqs / (2 * np.pi)
    k = np.clip((turns - low) / (high - low), 0, 1)
    return 1 / ((1 - k) / factor + k)


def recover(stored: NDArray[Any], theta: float, dim: int, where: L.Loc) -> dict[str, float]:
    """The llama3 parameters that yield these divisors, low_freq_factor taken as 1, as all published models have it.

    Between the two ends the inverse divisor is linear in the frequency: a line through the frequencies there gives the other
    two. With fewer than two there, only `factor` can be told. Raises Malformed T206 when no parameters yield the tensor.
    """
    d, freqs = np.asarray(stored, np.float64), float(theta) ** -(np.arange(0, dim, 2) / dim)
    if not np.isfinite(d).all() or (d < 1 - NEAR).any():
        raise _refused("they must be finite and not below 1", where)
    factor = float(d.max())
    if factor < 1 + NEAR:
        return {"factor": 1.0}
    between = (d > 1 + NEAR) & (d < factor * (1 - NEAR))
    if between.sum() < 2:
        if (np.diff(d) < -NEAR * factor).any():
            raise _refused("they must not fall as the wavelength grows", where)
        return {"factor": factor}
    k = (1 / d[between] - 1 / factor) / (1 - 1 / factor)
    slope, level = np.polyfit(freqs[between] / (2 * np.pi), k, 1)
    if slope <= 0 or level >= 0:
        raise _refused("no smooth band lies between the scaled and the unscaled frequencies", where)
    high = _rounded(1 - 1 / level)
    original = _rounded(slope * (high - 1))
    found = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": high, "original_max_position_embeddings": original}
    wrong = np.flatnonzero(np.abs(divisors(freqs, factor, 1.0, high, original) / d - 1) > NEAR)
    if wrong.size:
        i = int(wrong[0])
        raise _refused(f"entry {i} is {d[i]:.6g} where factor {factor:g}, high_freq_factor {high:g} and original context "
                       f"{original:g}, which the others state, give {divisors(freqs, factor, 1.0, high, original)[i]:.6g}", where)
    return found


def _rounded(x: float) -> float:
    """A whole number where the fit is that close to one."""
    return float(round(x)) if abs(x - round(x)) < 2e-3 * abs(x) else float(x)


def _refused(why: str, where: L.Loc) -> Malformed:
    return Malformed("T206", f"the divisors in rope_freqs are not Llama 3's: {why}", where,
                     why="they scale every rotation; a wrong one degrades long texts in silence",
                     hint="take the file again from its publisher")
