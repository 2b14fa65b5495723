"""The super-blocks of 256 values: sub-blocks of 16 or 32 with small scales of their own (ggml's K and ternary kinds)."""
from __future__ import annotations

import numpy as np

from uaii.backends.blocks.kind import Array, Kind, fields, half, paired

PAIRS = (0, 4)
QUADS = (0, 2, 4, 6)
BITS = tuple(range(8))


def _q2_scale(raw: Array) -> Array:
    return half(raw, 80) * (raw[:, :16] & 15).astype(np.float32)


def _q2_minimum(raw: Array) -> Array:
    return -(half(raw, 82) * (raw[:, :16] >> 4).astype(np.float32))


def _q3_integers(raw: Array) -> Array:
    """Two low bits and one high bit: 0..7, the file's value is 4 less."""
    return fields(raw, 32, 96, 32, QUADS, 3) | (fields(raw, 0, 32, 32, BITS, 1) << 2)


def _q3_scale(raw: Array) -> Array:
    low, high = fields(raw, 96, 104, 8, PAIRS, 15), fields(raw, 104, 108, 4, QUADS, 3)
    six = (low | (high << 4)).astype(np.int8) - np.int8(32)
    return half(raw, 108) * six.astype(np.float32)


def _six_bits(raw: Array) -> tuple[Array, Array]:
    """The eight 6-bit scales and minima of Q4_K and Q5_K, packed into bytes 4 to 15."""
    first, second, third = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scale = np.concatenate([first & 0x3F, (third & 15) | ((first >> 2) & 0x30)], axis=1)
    minimum = np.concatenate([second & 0x3F, (third >> 4) | ((second >> 2) & 0x30)], axis=1)
    return scale.astype(np.float32), minimum.astype(np.float32)


def _k_scale(raw: Array) -> Array:
    return half(raw, 0) * _six_bits(raw)[0]


def _k_minimum(raw: Array) -> Array:
    return -(half(raw, 2) * _six_bits(raw)[1])


def _q5_integers(raw: Array) -> Array:
    return fields(raw, 48, 176, 32, PAIRS, 15) | (fields(raw, 16, 48, 32, BITS, 1) << 4)


def _q6_integers(raw: Array) -> Array:
    return fields(raw, 0, 128, 64, PAIRS, 15) | (fields(raw, 128, 192, 32, QUADS, 3) << 4)


def _q6_scale(raw: Array) -> Array:
    return half(raw, 208) * np.ascontiguousarray(raw[:, 192:208]).view(np.int8).astype(np.float32)


def _tq1_integers(raw: Array) -> Array:
    """Base-3 digits: 5 of each of 48 bytes, 4 of each of the last 4. A digit is 3 * byte >> 8, which is 1 from 86 and 2 from
    171 on; three times the byte, in 8 bits, has the next."""
    out, at = np.empty((len(raw), 256), np.uint8), 0
    for start, stop, count in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        rest = np.ascontiguousarray(raw[:, start:stop])
        for _ in range(count):
            out[:, at:at + stop - start] = (rest > 85).view(np.uint8) + (rest > 170)
            rest, at = rest * np.uint8(3), at + stop - start
    return out

KQUANTS = {
    "q2_k": Kind(lambda r: fields(r, 16, 80, 32, QUADS, 3), _q2_scale, _q2_minimum, zero=2),
    "q3_k": Kind(_q3_integers, _q3_scale, zero=4),
    "q4_k": Kind(lambda r: fields(r, 16, 144, 32, PAIRS, 15), _k_scale, _k_minimum, zero=8,
                 pairs=lambda r: paired(r, 16, 144, 32)),
    "q5_k": Kind(_q5_integers, _k_scale, _k_minimum, zero=16),
    "q6_k": Kind(_q6_integers, _q6_scale, zero=32),
    "tq1_0": Kind(_tq1_integers, lambda r: np.repeat(half(r, 52), 8, axis=1), zero=1),
    "tq2_0": Kind(lambda r: fields(r, 0, 64, 32, QUADS, 3), lambda r: np.repeat(half(r, 64), 8, axis=1), zero=1),
}
