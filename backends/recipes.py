"""Evaluates weight recipes with NumPy, a slice of rows at a time where that saves memory."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from uaii.backends import blocks
from uaii.backends.blocks import dequantise
from uaii.backends.blocks.rounding import rounded
from uaii.ir.diag import Internal, Malformed
from uaii.ir.loc import File
from uaii.ir.recipe import Recipe
from uaii.ir.types import BLOCKS

Array = NDArray[Any]
DTYPES = {"f32": np.float32, "f16": np.float16, "f64": np.float64, "bf16": np.uint16, "i64": np.int64, "i32": np.int32,
          "i8": np.int8, "u8": np.uint8, "bool": np.bool_}
CHUNK = 1 << 20  # values converted at a time: few enough that the temporaries stay in the processor's caches


class Source(Protocol):
    """Where stored tensors come from; see frontend.checkpoint.Checkpoint.read."""

    def read(self, name: str) -> Any: ...


@runtime_checkable
class Counting(Source, Protocol):
    """A source that is told what stored tensors were, in f32, and what rounding made of them; see backends.losses."""

    def note(self, names: Sequence[str], values: Any, rounded: Any) -> None: ...


def evaluate(recipe: Recipe, source: Source) -> Array:
    """The weight's values: floats and ints in their NumPy type, bf16 as u16 patterns, blocks as u8 rows.

    Raises Malformed B6xx when a block's scale is not finite, Internal R002 for a recipe without a meaning.
    """
    if recipe.op == "load":
        return np.asarray(source.read(recipe.args[0]))
    if recipe.op not in _RULES:
        raise Internal("R002", f"recipe {recipe.op} has no meaning here")
    return _RULES[recipe.op](source, recipe, *recipe.args)


_RULES: dict[str, Callable[..., Array]] = {}


def _rule(f: Callable[..., Array]) -> Callable[..., Array]:
    _RULES[f.__name__.strip("_")] = f
    return f


def widen(x: Array, elem: str) -> Array:
    """Stored floats as f32 (f64 stays f64); bf16 is the upper half of an f32."""
    if elem == "bf16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x if x.dtype == np.float64 else x.astype(np.float32, copy=False)


def _narrow(x: Array, elem: str) -> Array:
    if elem != "bf16":
        return x.astype(DTYPES[elem], copy=False)
    bits = x.astype(np.float32, copy=False).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)


def _by_rows(x: Array, out_shape: tuple[int, ...], dtype: Any, convert: Callable[[Array], Array]) -> Array:
    """convert() over slices of rows into one array, so that temporaries stay small."""
    values = max(x.size, math.prod(out_shape))
    if x.ndim == 0 or values <= CHUNK:
        return convert(x).reshape(out_shape).astype(dtype, copy=False)
    out = np.empty((x.shape[0], *out_shape[1:]), dtype)
    step = max(1, CHUNK * x.shape[0] // values)
    for start in range(0, x.shape[0], step):
        part = convert(x[start:start + step])
        out[start:start + step] = part.reshape(-1, *out_shape[1:])
    return out.reshape(out_shape)


@_rule
def _cast(s: Source, r: Recipe, x: Recipe, elem: str) -> Array:
    return _by_rows(evaluate(x, s), r.type.sizes, DTYPES[elem], lambda v: _narrow(widen(v, x.type.elem), elem))


@_rule
def _add(s: Source, r: Recipe, x: Recipe, by: float) -> Array:
    return _narrow(widen(evaluate(x, s), x.type.elem) + np.float32(by), x.type.elem)


@_rule
def _scale(s: Source, r: Recipe, x: Recipe, by: float) -> Array:
    return _narrow(widen(evaluate(x, s), x.type.elem) * np.float32(by), x.type.elem)


@_rule
def _divide(s: Source, r: Recipe, x: Recipe, y: Recipe) -> Array:
    return np.asarray(widen(evaluate(x, s), x.type.elem) / widen(evaluate(y, s), y.type.elem), np.float32)


@_rule
def _transpose(s: Source, r: Recipe, x: Recipe) -> Array:
    return evaluate(x, s).swapaxes(-1, -2)


@_rule
def _reshape(s: Source, r: Recipe, x: Recipe, shape: tuple[int, ...]) -> Array:
    v = evaluate(x, s)
    return v.reshape(*shape[:-1], v.shape[-1]) if x.type.elem in BLOCKS else v.reshape(shape)


@_rule
def _rows(s: Source, r: Recipe, x: Recipe, start: int, stop: int) -> Array:
    return evaluate(x, s)[start:stop]


@_rule
def _concat(s: Source, r: Recipe, *parts: Recipe) -> Array:
    return np.concatenate([evaluate(p, s) for p in parts])


@_rule
def _stack(s: Source, r: Recipe, *parts: Recipe) -> Array:
    return np.stack([evaluate(p, s) for p in parts])


@_rule
def _interleave(s: Source, r: Recipe, a: Recipe, b: Recipe) -> Array:
    x = evaluate(a, s)
    return np.stack([x, evaluate(b, s)], 2).reshape(x.shape[0], -1, *x.shape[2:])


@_rule
def _join(s: Source, r: Recipe, a: Recipe, b: Recipe) -> Array:
    return np.concatenate([evaluate(a, s), evaluate(b, s)], 1)


@_rule
def _every(s: Source, r: Recipe, x: Recipe, start: int, stop: int, step: int) -> Array:
    return evaluate(x, s)[:, start:stop:step]


@_rule
def _unpermute(s: Source, r: Recipe, x: Recipe, heads: int) -> Array:
    v = evaluate(x, s)
    pairs = v.reshape(heads, v.shape[0] // heads // 2, 2, *v.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(v.shape)


@_rule
def _group_rows(s: Source, r: Recipe, x: Recipe, groups: int, start: int, stop: int) -> Array:
    v = evaluate(x, s)
    picked = v.reshape(groups, -1, *v.shape[1:])[:, start:stop]
    return np.ascontiguousarray(picked).reshape(-1, *v.shape[1:])


@_rule
def _mxfp4(s: Source, r: Recipe, blocks: Recipe, scales: Recipe) -> Array:
    """ggml's order: an exponent, then bytes of a value of the first half of the block below one of the second."""
    codes = evaluate(blocks, s)
    first, second = codes[..., :8], codes[..., 8:]
    out = np.empty((*codes.shape[:-1], 17), np.uint8)
    out[..., 0] = evaluate(scales, s)
    out[..., 1::2] = first & 15 | second << 4
    out[..., 2::2] = first >> 4 | second & 0xF0
    return out.reshape(*codes.shape[:-2], -1)


def _e4m3() -> Array:
    """The value of each code: a sign, four bits of exponent, three of mantissa; 0x7F and 0xFF are NaN."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(exponent, np.ldexp(1 + mantissa / 8, exponent - 7), np.ldexp(mantissa / 8, -6))
    return np.where(code & 0x7F == 0x7F, np.nan, np.where(code >> 7, -size, size)).astype(np.float32)


E4M3 = _e4m3()


@_rule
def _f8_e4m3(s: Source, r: Recipe, codes: Recipe, factors: Recipe, rows: int, columns: int) -> Array:
    x, by, out = evaluate(codes, s), widen(evaluate(factors, s), factors.type.elem), np.empty(r.type.sizes, np.float32)
    with np.errstate(all="ignore"):  # what is not finite is refused below
        for i, line in enumerate(by):
            at = slice(i * rows, (i + 1) * rows)
            np.multiply(E4M3[x[at]], line.astype(np.float32).repeat(columns)[:x.shape[1]], out=out[at])
    if not np.isfinite(out).all():
        raise Malformed("B601", f"a value of {', '.join(r.loads)} is not finite", File(codes.loads[0]),
                        hint="the file is damaged: download it again")
    return out


@_rule
def _quantise(s: Source, r: Recipe, x: Recipe, elem: str) -> Array:
    rows, block = evaluate(x, s), BLOCKS[elem]

    def convert(part: Array) -> Array:
        values = widen(part, x.type.elem).astype(np.float32, copy=False).reshape(-1, block.size)
        made = rounded(values, elem, r.loads)
        if isinstance(s, Counting):
            s.note(r.loads, values, dequantise(made, elem))
        return np.asarray(made)

    *outer, width = r.type.sizes
    flat = (math.prod(outer), width // block.size * block.nbytes)
    return _by_rows(rows.reshape(-1, width), flat, np.uint8, convert).reshape(*outer, -1)


@_rule
def _dequant(s: Source, r: Recipe, x: Recipe) -> Array:
    kind = x.type.elem
    return _by_rows(evaluate(x, s), r.type.sizes, np.float32, lambda v: dequantise(v, kind, ", ".join(x.loads)))


def _raw(s: Source, x: Recipe) -> tuple[Array, Callable[[Array], Array]]:
    """A block tensor's rows, and what cuts rows into blocks."""
    return evaluate(x, s), lambda rows: rows.reshape(-1, BLOCKS[x.type.elem].nbytes)


@_rule
def _quants(s: Source, r: Recipe, x: Recipe, bits: int) -> Array:
    rows, cut = _raw(s, x)
    return _by_rows(rows, r.type.sizes, np.uint8, lambda v: blocks.quants(cut(v), x.type.elem, bits))


@_rule
def _scales(s: Source, r: Recipe, x: Recipe) -> Array:
    rows, cut = _raw(s, x)
    names = ", ".join(x.loads)
    return _by_rows(rows, r.type.sizes, np.float32, lambda v: blocks.scales(cut(v), x.type.elem, names))


@_rule
def _offsets(s: Source, r: Recipe, x: Recipe) -> Array:
    rows, cut = _raw(s, x)
    names = ", ".join(x.loads)
    return _by_rows(rows, r.type.sizes, np.float32, lambda v: blocks.offsets(cut(v), x.type.elem, names))


@_rule
def _spread(s: Source, r: Recipe, x: Recipe, times: int) -> Array:
    return evaluate(x, s).repeat(times, -1)


@_rule
def _fill(s: Source, r: Recipe, value: float, shape: tuple[int, ...]) -> Array:
    return np.full(shape, value, np.float32)


@_rule
def _block_rows(s: Source, r: Recipe, count: int, block: int, bits: int) -> Array:
    zero = 1 << (bits - 1)
    packed = [sum(q << shift for shift in range(0, 8, bits)) for q in (zero, zero + 1)]
    rows = np.full(r.type.sizes, packed[0], np.uint8)
    rows[np.arange(count), np.arange(count)] = packed[1]
    return rows


@_rule
def _rope_freqs(s: Source, r: Recipe, theta: float, dim: int, kind: str, *p: float) -> Array:
    """transformers modeling_rope_utils, in f64, rounded to f32 at the end."""
    f = 1.0 / float(theta) ** (np.arange(0, dim, 2, dtype=np.float64) / dim)
    match kind:
        case "default":
            pass
        case "linear":
            f = f / p[0]
        case "llama3":
            factor, low, high, original = p
            wave = 2 * np.pi / f
            k = (original / wave - low) / (high - low)
            between = (1 - k) * f / factor + k * f
            f = np.where(wave < original / high, f, np.where(wave > original / low, f / factor, between))
        case "yarn":
            factor, low, high = p
            ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
            f = ramp * f / factor + (1 - ramp) * f
        case "longrope":
            f = f / np.array(p)
        case _:
            raise Internal("R002", f"rope kind {kind} has no meaning here")
    return f.astype(np.float32)


def _angles(s: Source, freqs: Recipe, positions: int) -> Array:
    return np.arange(positions, dtype=np.float32)[:, None] * evaluate(freqs, s)[None, :]


@_rule
def _rope_cos(s: Source, r: Recipe, freqs: Recipe, positions: int, magnitude: float) -> Array:
    return np.cos(_angles(s, freqs, positions)) * np.float32(magnitude)


@_rule
def _rope_sin(s: Source, r: Recipe, freqs: Recipe, positions: int, magnitude: float) -> Array:
    return np.sin(_angles(s, freqs, positions)) * np.float32(magnitude)
