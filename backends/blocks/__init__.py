"""ggml's quantised blocks taken apart: integers, scales and offsets, bit for bit (ggml-common.h, ggml-quants.c).

A value is scale * (q - zero), or scale * q + minimum in the affine kinds; scale and minimum are computed in f32 by the very
expressions of ggml, so that the values are the file's.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from uaii.backends.blocks.codebook import CODEBOOK
from uaii.backends.blocks.grids import GRIDS
from uaii.backends.blocks.kind import Kind, finite
from uaii.backends.blocks.kquants import KQUANTS
from uaii.backends.blocks.simple import SIMPLE
from uaii.ir.types import BLOCKS, PACKINGS

Array = Any  # NumPy's own stubs widen to Any at every turn
KINDS: dict[str, Kind] = {**SIMPLE, **KQUANTS, **CODEBOOK, **GRIDS}


def dequantise(raw: Array, kind: str, names: str = "the tensor") -> Array:
    """u8 [..., row bytes] to f32 [..., values]; Malformed B601 when a value is not finite."""
    block = BLOCKS[kind]
    flat = np.ascontiguousarray(raw).reshape(-1, block.nbytes)
    with np.errstate(invalid="ignore", over="ignore"):
        values = _own(flat, kind)
    return finite(values.reshape(*raw.shape[:-1], raw.shape[-1] // block.nbytes * block.size), names)


def _own(raw: Array, kind: str) -> Array:
    made, size = KINDS[kind], PACKINGS[kind].size
    q = made.integers(raw).reshape(-1, size)
    scale, minimum = made.scale(raw).reshape(-1, 1), made.minimum(raw)
    if minimum is None:
        return scale * (q.astype(np.float32) - np.float32(made.zero))
    return scale * q.astype(np.float32) + minimum.reshape(-1, 1)


def quants(raw: Array, kind: str, bits: int) -> Array:
    """u8 [blocks, bytes] to u8 [sub-blocks, size*bits/8]: q - zero + 2^(bits-1), low bits first."""
    made, size = KINDS[kind], PACKINGS[kind].size
    if bits == 4 and made.pairs is not None:
        return made.pairs(raw).reshape(-1, size // 2)
    shift = (1 << (bits - 1)) - made.zero
    q = made.integers(raw).reshape(-1, size)
    unsigned = q.view(np.uint8) + np.uint8(shift & 0xFF)
    if bits == 8:
        return unsigned
    two = unsigned.view(np.uint16)  # a word of two integers below 16
    return np.asarray((two | two >> 4).astype(np.uint8))


def scales(raw: Array, kind: str, names: str) -> Array:
    """f32 [sub-blocks]. Raises Malformed B601."""
    with np.errstate(invalid="ignore", over="ignore"):
        return finite(KINDS[kind].scale(raw).reshape(-1), names)


def offsets(raw: Array, kind: str, names: str) -> Array:
    """f32 [sub-blocks]: what the value `zero` stands for in an affine kind, minimum + zero * scale. Raises Malformed B601."""
    made = KINDS[kind]
    with np.errstate(invalid="ignore", over="ignore"):
        minimum = made.minimum(raw)
        if minimum is None:
            return np.zeros(len(raw) * BLOCKS[kind].size // PACKINGS[kind].size, np.float32)
        return finite((minimum + np.float32(made.zero) * made.scale(raw)).reshape(-1), names)
