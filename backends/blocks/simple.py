"""The kinds with one scale per 32 values."""
from __future__ import annotations

import numpy as np

from uaii.backends.blocks.kind import Array, Kind, half, nibbles, paired


def _five_bits(raw: Array, high: int) -> Array:
    """Low nibbles after four bytes of high bits, which begin at byte `high`."""
    top = np.unpackbits(raw[:, high:high + 4], axis=1, bitorder="little")
    return nibbles(raw, high + 4, high + 20) | (top << 4)


def _int8(raw: Array) -> Array:
    return np.ascontiguousarray(raw[:, 2:]).view(np.int8)


SIMPLE = {
    "q4_0": Kind(lambda r: nibbles(r, 2, 18), lambda r: half(r, 0), zero=8, pairs=lambda r: paired(r, 2, 18, 16)),
    "q4_1": Kind(lambda r: nibbles(r, 4, 20), lambda r: half(r, 0), lambda r: half(r, 2), zero=8,
                 pairs=lambda r: paired(r, 4, 20, 16)),
    "q5_0": Kind(lambda r: _five_bits(r, 2), lambda r: half(r, 0), zero=16),
    "q5_1": Kind(lambda r: _five_bits(r, 4), lambda r: half(r, 0), lambda r: half(r, 2), zero=16),
    "q8_0": Kind(_int8, lambda r: half(r, 0)),
}
