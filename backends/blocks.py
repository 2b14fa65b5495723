"""ggml's quantised blocks taken apart: integers, scales and offsets, bit for bit (ggml-common.h, ggml-quants.c)."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import gguf
import numpy as np
from numpy.typing import NDArray

from uaii.ir.diag import Malformed
from uaii.ir.loc import File

Array = NDArray[Any]


class BlockKind(Protocol):
    """A block layout; `raw` is u8 [blocks, bytes], `names` the tensors it is from, for errors."""

    def quants(self, raw: Array, names: str) -> Array:
        """Unsigned integers in MatMulNBits order: u8 [blocks, size*bits/8], low bits first."""
        ...

    def scales(self, raw: Array, names: str) -> Array:
        """f32 [blocks]; Malformed B601 when one is not finite."""
        ...

    def offsets(self, raw: Array, names: str) -> Array:
        """f32 [blocks]: the value that integer 2^(bits-1) stands for."""
        ...


def dequantise(raw: Array, kind: str, names: str = "the tensor") -> Array:
    """u8 [..., row bytes] to f32 [..., values], by the gguf package; Malformed B601 when a value is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        values = np.asarray(gguf.dequantize(np.ascontiguousarray(raw), gguf.GGMLQuantizationType[kind.upper()]))
    return _finite(values, names)


def _finite(values: Array, names: str) -> Array:
    if not np.isfinite(values).all():
        raise Malformed("B601", f"a block scale of {names} is not finite", File(names),
                        why="every product with this block would be NaN or infinite",
                        hint="the file is damaged: take it again from its publisher")
    return values


def _half(raw: Array, start: int, names: str) -> Array:
    return _finite(np.ascontiguousarray(raw[:, start:start + 2]).view(np.float16)[:, 0].astype(np.float32), names)


def _pack_nibbles(qs: Array) -> Array:
    """16 bytes holding values j (low nibble) and j+16 (high) to 16 bytes holding 2j and 2j+1."""
    q = np.concatenate([qs & 15, qs >> 4], axis=1)
    return np.asarray(q[:, 0::2] | (q[:, 1::2] << 4))


@dataclass(frozen=True)
class Nibbles:
    """Q4_0: d*(q - 8); Q4_1: d*q + m. f16 d (then f16 m), then 16 bytes of nibbles."""

    affine: bool

    def quants(self, raw: Array, names: str) -> Array:
        return _pack_nibbles(raw[:, 4 if self.affine else 2:])

    def scales(self, raw: Array, names: str) -> Array:
        return _half(raw, 0, names)

    def offsets(self, raw: Array, names: str) -> Array:
        """m + 8d: the integer 8 is the kernel's zero."""
        return np.asarray(_half(raw, 2, names) + 8 * _half(raw, 0, names))


@dataclass(frozen=True)
class Bytes:
    """Q8_0: d*q with q int8, stored with 128 added. f16 d, then 32 bytes."""

    def quants(self, raw: Array, names: str) -> Array:
        return raw[:, 2:] ^ 0x80

    def scales(self, raw: Array, names: str) -> Array:
        return _half(raw, 0, names)

    def offsets(self, raw: Array, names: str) -> Array:
        return np.zeros(len(raw), np.float32)


BLOCK_KINDS: dict[str, BlockKind] = {"q4_0": Nibbles(affine=False), "q4_1": Nibbles(affine=True), "q8_0": Bytes()}
