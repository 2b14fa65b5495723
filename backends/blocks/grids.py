"""The IQ1, IQ2 and IQ3 kinds: groups of 8 or 4 integers are looked up by one code in ggml's grids, then given signs.

Source: ggml-common.h and ggml-quants.c of ggml; the grids are the gguf package's copy. A group is taken as one word of
bytes: its sign is put on by (word ^ mask) - mask, byte by byte, where a mask has FF for each negative one.
"""
from __future__ import annotations

from functools import cache

import gguf
import numpy as np

from uaii.backends.blocks.kind import Array, Kind, bits16, fields, half, look

PAIRS, QUADS, SEVENS, THREES = (0, 4), (0, 2, 4, 6), (0, 7, 14, 21), (0, 3, 6, 9)
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
MASKS = np.ascontiguousarray(_BITS * np.uint8(255)).view(np.uint64).ravel()  # by the byte of signs, first value lowest
_SEVEN = np.arange(128, dtype=np.uint8)
SEVEN_BITS = MASKS[_SEVEN | (np.bitwise_count(_SEVEN) & 1) << 7]  # the eighth sign makes their number even


@cache
def _grid(name: str) -> Array:
    """A grid's integers, i8 [codes, 8 or 4]."""
    kind = getattr(gguf.quants, name)
    kind.init_grid()
    return np.asarray(kind.grid, np.int8).reshape(kind.grid_shape)


@cache
def _words(name: str) -> Array:
    """A grid with one word a code: u64 or u32 [codes]."""
    grid = _grid(name)
    return grid.view(np.uint64 if grid.shape[1] == 8 else np.uint32).ravel()


@cache
def _eighths() -> Array:
    """IQ1's grid in eighths, u64 [2 * codes]: each value with 1/8 added, then each with 1/8 taken away."""
    grid = 8 * _grid("IQ1_S")
    return np.concatenate([grid + np.int8(1), grid - np.int8(1)]).view(np.uint64).ravel()


@cache
def _turned(name: str) -> Array:
    """A grid of 8 values a code under each seven bits of signs, u64 [128 * codes], the signs above the code."""
    grid = _words(name)
    return _signed(np.tile(grid, 128), np.repeat(SEVEN_BITS, len(grid))).view(np.uint64)


def _signed(groups: Array, masks: Array) -> Array:
    """i8 [blocks, values]: words of 4 or 8 values, and a mask for each 8."""
    words = np.ascontiguousarray(groups).view(np.uint64)
    return (words ^ masks).view(np.int8) - np.ascontiguousarray(masks).view(np.int8)


def _bits32(raw: Array, start: int, stop: int) -> Array:
    return np.ascontiguousarray(raw[:, start:stop]).view(np.uint32)


def _split(words: Array, shifts: tuple[int, ...], mask: int) -> Array:
    """Bit fields of each word, in order: [blocks, words * fields]."""
    out = np.empty((*words.shape, len(shifts)), words.dtype)
    for i, shift in enumerate(shifts):
        np.right_shift(words, words.dtype.type(shift), out=out[:, :, i])
    out &= words.dtype.type(mask)
    return out.reshape(len(words), -1)


def _wide(low: Array, high: Array) -> Array:
    """Codes of a byte and what is above it."""
    return low | (high.astype(np.uint16) << 8)


def _iq2_xxs(raw: Array) -> Array:
    pairs = _bits32(raw, 2, 66).reshape(len(raw), 8, 2)
    codes = np.ascontiguousarray(pairs[:, :, 0]).view(np.uint8)
    return look(_turned("IQ2_XXS"), _split(pairs[:, :, 1], SEVENS, 127) << 8 | codes).view(np.int8)


def _iq2_xs(raw: Array) -> Array:
    return look(_turned("IQ2_XS"), bits16(raw, 2, 66)).view(np.int8)


def _iq2_s(raw: Array) -> Array:
    return _signed(look(_words("IQ2_S"), _wide(raw[:, 2:34], fields(raw, 66, 74, 1, QUADS, 3))), look(MASKS, raw[:, 34:66]))


def _iq3_xxs(raw: Array) -> Array:
    return _signed(look(_words("IQ3_XXS"), raw[:, 2:66]), look(SEVEN_BITS, _split(_bits32(raw, 66, 98), SEVENS, 127)))


def _iq3_s(raw: Array) -> Array:
    codes = _wide(raw[:, 2:66], fields(raw, 66, 74, 1, tuple(range(8)), 1))
    return _signed(look(_words("IQ3_S"), codes), look(MASKS, raw[:, 74:106]))


def _iq1_s(raw: Array) -> Array:
    high = bits16(raw, 34, 50)
    return look(_eighths(), _wide(raw[:, 2:34], _split(high, THREES, 7) | np.repeat(high >> 15 << 3, 4, axis=1))).view(np.int8)


def _iq1_m(raw: Array) -> Array:
    return look(_eighths(), _wide(raw[:, :32], fields(raw, 32, 48, 1, PAIRS, 15))).view(np.int8)


def _quarter(raw: Array, four_bits: Array, by: float) -> Array:
    return half(raw, 0) * (np.float32(0.5) + four_bits.astype(np.float32)) * np.float32(by)


def _iq3_s_scale(raw: Array) -> Array:
    return half(raw, 0) * (1 + 2 * fields(raw, 106, 110, 1, PAIRS, 15)).astype(np.float32)


def _iq1_s_scale(raw: Array) -> Array:
    return half(raw, 0) * (2 * ((bits16(raw, 34, 50) >> 12) & 7) + 1).astype(np.float32) * np.float32(0.125)


def _iq1_m_scale(raw: Array) -> Array:
    words = bits16(raw, 48, 56)
    d = ((words[:, 0:1] >> 12) | ((words[:, 1:2] >> 8) & 0x00F0) | ((words[:, 2:3] >> 4) & 0x0F00) | (words[:, 3:4] & 0xF000))
    return d.view(np.float16).astype(np.float32) * (2 * _split(words, THREES, 7) + 1).astype(np.float32) * np.float32(0.125)


GRIDS = {
    "iq2_xxs": Kind(_iq2_xxs, lambda r: _quarter(r, _bits32(r, 2, 66)[:, 1::2] >> 28, 0.25)),
    "iq2_xs": Kind(_iq2_xs, lambda r: _quarter(r, fields(r, 66, 74, 1, PAIRS, 15), 0.25)),
    "iq2_s": Kind(_iq2_s, lambda r: _quarter(r, fields(r, 74, 82, 1, PAIRS, 15), 0.25)),
    "iq3_xxs": Kind(_iq3_xxs, lambda r: _quarter(r, _bits32(r, 66, 98) >> 28, 0.5)),
    "iq3_s": Kind(_iq3_s, _iq3_s_scale), "iq1_s": Kind(_iq1_s, _iq1_s_scale), "iq1_m": Kind(_iq1_m, _iq1_m_scale),
}
