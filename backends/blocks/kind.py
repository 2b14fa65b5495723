"""What a block kind can say of its bytes."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from uaii.ir.diag import Malformed
from uaii.ir.loc import File

Array = Any  # NumPy's own stubs widen to Any at every turn


def _none(raw: Array) -> None:
    return None


@dataclass(frozen=True)
class Kind:
    """`raw` is u8 [blocks, bytes]. integers: i8 or u8 [blocks, values]; scale and minimum: f32 [blocks, sub-blocks].

    `zero` is the integer in the middle: the value 0 of a symmetric kind, the kernel's zero of an affine one. `pairs`, of kinds
    that store integers of four bits with 8 in the middle, are those two to a byte, the first in the low half.
    """

    integers: Callable[[Array], Array]
    scale: Callable[[Array], Array]
    minimum: Callable[[Array], Array | None] = _none
    zero: int = 0
    pairs: Callable[[Array], Array] | None = None


def half(raw: Array, start: int) -> Array:
    """The f16 at the even byte `start` of each block, which is a whole number of words, as f32 [blocks, 1]."""
    return np.ascontiguousarray(raw).view(np.float16)[:, start // 2, None].astype(np.float32)


def nibbles(raw: Array, start: int, stop: int) -> Array:
    """Groups of bytes whose low nibbles come first, then their high ones: u8 [blocks, 2*(stop-start)], one group a block."""
    qs = raw[:, start:stop]
    return np.concatenate([qs & 15, qs >> 4], axis=1)


def paired(raw: Array, start: int, stop: int, group: int) -> Array:
    """The nibbles of groups of bytes, low ones first and then high ones, two neighbours to a byte: u8 [blocks, stop-start]."""
    words = np.ascontiguousarray(raw[:, start:stop]).view(np.uint16).ravel()
    out = np.empty((len(words) * 2 // group, 2, group // 16), np.uint64)
    for i, nibble in enumerate((words & np.uint16(0x0F0F), words >> np.uint16(4) & np.uint16(0x0F0F))):
        nibble |= nibble >> np.uint16(4)
        out[:, i] = nibble.astype(np.uint8).view(np.uint64).reshape(-1, group // 16)
    return out.view(np.uint8).reshape(len(raw), -1)


def fields(raw: Array, start: int, stop: int, group: int, shifts: tuple[int, ...], mask: int) -> Array:
    """Bit fields of groups of `group` bytes, one pass over a group per shift: u8 [blocks, fields]."""
    qs = raw[:, start:stop].reshape(len(raw), -1, group)
    if group == 1:
        return look(_fields_of(shifts, mask), qs).view(np.uint8).reshape(len(raw), -1)
    out = np.empty((len(raw), qs.shape[1], len(shifts), group), np.uint8)
    for i, shift in enumerate(shifts):
        np.right_shift(qs, np.uint8(shift), out=out[:, :, i])
    out &= np.uint8(mask)
    return out.reshape(len(raw), -1)


@cache
def _fields_of(shifts: tuple[int, ...], mask: int) -> Array:
    """Each byte's bit fields, as one word."""
    every = np.arange(256, dtype=np.uint8)[:, None] >> np.array(shifts, np.uint8)
    return np.ascontiguousarray(every & np.uint8(mask)).view(f"u{len(shifts)}").ravel()


def look(table: Array, codes: Array) -> Array:
    """table[codes] of legal codes; NumPy is quickest with indices of its own width and no bounds to report."""
    return table.take(codes.astype(np.intp), mode="clip")


def bits16(raw: Array, start: int, stop: int) -> Array:
    """The bytes as words: u16 [blocks, (stop-start)/2]."""
    return np.ascontiguousarray(raw[:, start:stop]).view(np.uint16)


def finite(values: Array, names: str) -> Array:
    """The values. Raises Malformed B601 when one is NaN or infinite."""
    if not np.isfinite(values).all():
        raise Malformed("B601", f"a block scale of {names} is not finite", File(names),
                        why="every product with this block would be NaN or infinite",
                        hint="the file is damaged: take it again from its publisher")
    return values
