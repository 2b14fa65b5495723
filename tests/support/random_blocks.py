"""Blocks of every ggml kind with random integers and sensible scales: valid weights of a chosen spread.

The gguf package quantises the simple kinds only; for the K and IQ kinds any bytes are valid integers, so that only the
scales need care.
"""
from __future__ import annotations

from typing import Any

import gguf
import numpy as np

from uaii.ir.types import BLOCKS

Array = Any
# Where a block's f16 numbers lie, if not at its start: the scale, and of the affine kinds the minimum after it.
HALVES = {"q4_1": (0, 2), "q5_1": (0, 2), "q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,),
          "tq1_0": (52,), "tq2_0": (64,)}
# The minimum that centres random integers, as a multiple of the scale.
CENTRE = {"q4_1": -7.5, "q5_1": -15.5, "q2_k": 1.5, "q4_k": 7.5, "q5_k": 15.5}


def values(raw: Array, kind: str) -> Array:
    """f32 [rows, values] that u8 [rows, row bytes] mean, by the gguf package."""
    return gguf.dequantize(raw, gguf.GGMLQuantizationType[kind.upper()])


def random_blocks(kind: str, rows: int, cols: int, seed: int, std: float) -> Array:
    """u8 [rows, row bytes] whose values have about this standard deviation; scales differ by up to three from block to block."""
    rng = np.random.RandomState(seed)
    count = rows * cols // BLOCKS[kind].size
    raw = rng.randint(0, 256, (count, BLOCKS[kind].nbytes)).astype(np.uint8)
    unit = float(values(_scaled(raw, kind, np.ones(count)), kind).std())
    return _scaled(raw, kind, std / unit * rng.uniform(0.5, 1.5, count)).reshape(rows, -1)


def _scaled(raw: Array, kind: str, d: Array) -> Array:
    """The same integers under the scales `d` [blocks]."""
    out = raw.copy()
    if kind == "mxfp4":
        out[:, 0] = 128 + np.rint(np.log2(d)).astype(int)
        return out
    if kind == "iq1_m":  # the scale's four nibbles are on top of the last four words, lowest first
        bits = d.astype(np.float16).view(np.uint16)
        words = np.ascontiguousarray(out[:, 48:56]).view(np.uint16) & 0x0FFF
        out[:, 48:56] = (words | (bits[:, None] << np.array([12, 8, 4, 0], np.uint16) & 0xF000)).view(np.uint8)
        return out
    for place, factor in zip(HALVES.get(kind, (0,)), (1.0, CENTRE.get(kind, 0.0)), strict=False):
        out[:, place:place + 2] = (d * factor).astype(np.float16).reshape(-1, 1).view(np.uint8)
    return out
