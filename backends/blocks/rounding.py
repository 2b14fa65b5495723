"""Floats rounded to the nearest block values, bit for bit as ggml does it (quantize_row_*_ref of ggml-quants.c).

Q4_0 is also onnxruntime's own rounding to 4 symmetric bits, integer by integer.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from uaii.backends.blocks.kind import Array, half
from uaii.ir.diag import Malformed, Unsupported
from uaii.ir.loc import File

# The largest f32 below 1/2: added with a number's sign and cut off, it rounds halves away from zero, as roundf does.
HALF = np.float32(0.49999997).view(np.uint32)
SIGN = np.uint32(1 << 31)


def _reduce(f: Callable[[Array, Array], Array], x: Array) -> Array:
    """f over each row's values, halves at a time: [blocks, 32] to [blocks, 1]."""
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        x = f(x[:, :half], x[:, half:])
    return x


def _over(x: Array, d: Array) -> Array:
    """x times the inverse of d, in which a block of zeros stays zero."""
    return x * np.where(d == 0, np.float32(0), np.float32(1) / d)


def _put(out: Array, at: int, scale: Array) -> None:
    out[:, at:at + 2] = scale.astype(np.float16).view(np.uint8)


def _q8_0(x: Array) -> Array:
    d = _reduce(np.maximum, np.abs(x)) / np.float32(127)
    q = _over(x, d)
    q += (q.view(np.uint32) & SIGN | HALF).view(np.float32)
    out = np.empty((len(x), 34), np.uint8)
    _put(out, 0, d)
    out[:, 2:].view(np.int8)[...] = q.astype(np.int8)
    return out


def _q4_0(x: Array) -> Array:
    """The value furthest from zero is -8, the first one where two are as far."""
    top, low = _reduce(np.maximum, x), _reduce(np.minimum, x)
    most: Array = np.where(top > -low, top, low)
    tied: Array = np.flatnonzero(top == -low)
    if len(tied):
        rows = x[tied]
        most[tied] = np.take_along_axis(rows, np.abs(rows).argmax(1, keepdims=True), 1)
    d = most / np.float32(-8)
    q = np.minimum((_over(x, d) + np.float32(8.5)).astype(np.uint8), 15)
    out = np.empty((len(x), 18), np.uint8)
    _put(out, 0, d)
    np.bitwise_or(q[:, :16], q[:, 16:] << 4, out=out[:, 2:])
    return out


ROUNDERS: dict[str, Callable[[Array], Array]] = {"q8_0": _q8_0, "q4_0": _q4_0}


def rounded(x: Array, kind: str, loads: Sequence[str] = ("the tensor",)) -> Array:
    """f32 [blocks, 32] to u8 [blocks, bytes]. Raises Malformed B601 for a value that is not finite, Unsupported B602 for one
    that the layout has no scale for."""
    with np.errstate(all="ignore"):  # what is not finite is refused below
        out = ROUNDERS[kind](x)
    if np.isfinite(half(out, 0)).all():
        return out
    names = ", ".join(loads)
    if not np.isfinite(x).all():
        raise Malformed("B601", f"a value of {names} is not finite", File(loads[0]),
                        why="every product with its block would be NaN or infinite",
                        hint="the file is damaged: download it again")
    raise Unsupported("B602", f"a value of {names} is {np.abs(x).max():.3g}, for which {kind} has no scale", File(loads[0]),
                      why="a block's scale is an f16, which ends at 65504", hint="compile it with --weights auto")
