"""The kinds whose integers are looked up in a table of 16, two at a time: IQ4 and MXFP4."""
from __future__ import annotations

from functools import cache

import numpy as np

from uaii.backends.blocks.kind import Array, Kind, bits16, fields, half, look

IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)  # twice the values; scales are halved


@cache
def _pairs(name: str) -> tuple[Array, Array]:
    """What the low and what the high nibbles of two bytes mean, u16 [65536] each, by the two bytes."""
    book, every = {"iq4": IQ4, "fp4": FP4}[name].view(np.uint8).astype(np.uint16), np.arange(1 << 16)
    low, high = (book[every >> at & 15] | book[every >> at + 8 & 15] << 8 for at in (0, 4))
    return low, high


def _meant(name: str, raw: Array, start: int, stop: int) -> Array:
    """The values of groups of 16 bytes, whose low nibbles come first: i8 [blocks, 2*(stop-start)]."""
    codes = bits16(raw, start, stop).astype(np.intp).reshape(-1, 8)
    out = np.empty((len(codes), 2, 8), np.uint16)
    for i, table in enumerate(_pairs(name)):
        out[:, i] = look(table, codes)
    return out.view(np.int8).reshape(len(raw), -1)


def _iq4_xs_scale(raw: Array) -> Array:
    high = np.ascontiguousarray(raw[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16)
    low = fields(raw, 4, 8, 1, (0, 4), 15)
    return np.asarray(half(raw, 0) * ((low | ((high & 3) << 4)).astype(np.int16) - 32).astype(np.float32))


def _e8m0_half(raw: Array) -> Array:
    """2^(e - 128) as f32; e = 255 is not a number there, and not finite here."""
    e = raw[:, :1].astype(np.int32)
    return np.where(e == 255, np.nan, np.ldexp(np.float32(1), e - 128)).astype(np.float32)


CODEBOOK = {
    "iq4_nl": Kind(lambda r: _meant("iq4", r, 2, 18), lambda r: half(r, 0)),
    "iq4_xs": Kind(lambda r: _meant("iq4", r, 8, 136), _iq4_xs_scale),
    "mxfp4": Kind(lambda r: _meant("fp4", r, 1, 17), _e8m0_half),
}
