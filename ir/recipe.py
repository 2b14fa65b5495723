"""What a weight is made of: a small typed expression over checkpoint tensors, computed at emission."""
from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from uaii.ir.diag import Internal
from uaii.ir.known import plain
from uaii.ir.types import BLOCKS, FLOATS, FP8, PACKINGS, ROUNDED, Tensor

Typing = Callable[..., Tensor]
RECIPES: dict[str, Typing] = {}


@dataclass(frozen=True)
class Recipe:
    """An operation over recipes and constants; `load` names a stored tensor and its type. `type` is what it yields."""

    op: str
    args: tuple[Any, ...]

    @cached_property
    def type(self) -> Tensor:
        if self.op not in RECIPES:
            raise Internal("V010", f"unknown recipe {self.op!r}; known: {', '.join(RECIPES)}")
        return RECIPES[self.op](*self.args)

    @property
    def loads(self) -> tuple[str, ...]:
        """The stored tensors it reads, in order."""
        if self.op == "load":
            return (self.args[0],)
        return tuple(dict.fromkeys(n for a in self.args if isinstance(a, Recipe) for n in a.loads))

    @property
    def parts(self) -> Iterator[Recipe]:
        """Itself and every recipe in it."""
        yield self
        for a in self.args:
            if isinstance(a, Recipe):
                yield from a.parts

    def __str__(self) -> str:
        if self.op == "load":
            return f"{json.dumps(self.args[0], ensure_ascii=False)}:{self.args[1]}"
        return f"{self.op}({', '.join(_show(a) for a in self.args)})"


def _show(arg: Any) -> str:
    if isinstance(arg, tuple):
        return f"[{', '.join(_show(a) for a in arg)}]"
    return str(arg) if isinstance(arg, Recipe | Tensor | str) else repr(arg)


def _typed(rule: Typing) -> Typing:
    RECIPES[rule.__name__.strip("_")] = rule
    return rule


def make(op: str, *args: Any) -> Recipe:
    """A recipe whose type has been checked."""
    recipe = Recipe(op, tuple(plain(a) for a in args))
    recipe.type  # noqa: B018  a wrong recipe must fail where it is made
    return recipe


def _need(fits: bool, says: str) -> None:
    if not fits:
        raise Internal("V011", says)


@_typed
def load(name: str, type: Tensor) -> Tensor:
    """The stored tensor."""
    return type


@_typed
def cast(x: Recipe, elem: str) -> Tensor:
    """Another float type, rounded to nearest even when narrower."""
    _need(x.type.elem in FLOATS and elem in FLOATS, f"cast of {x.type} to {elem}")
    return x.type.of(elem)


@_typed
def add(x: Recipe, by: float) -> Tensor:
    """x + by."""
    _need(x.type.elem in FLOATS, f"add to {x.type}")
    return x.type


@_typed
def scale(x: Recipe, by: float) -> Tensor:
    """x * by."""
    _need(x.type.elem in FLOATS, f"scale of {x.type}")
    return x.type


@_typed
def divide(x: Recipe, y: Recipe) -> Tensor:
    """x / y, elementwise, in f32."""
    _need(x.type.shape == y.type.shape, f"{x.type} / {y.type}")
    return x.type.of("f32")


@_typed
def transpose(x: Recipe) -> Tensor:
    """The last two axes exchanged."""
    _need(x.type.rank in (2, 3) and x.type.elem not in BLOCKS, f"transpose of {x.type}")
    *rest, a, b = x.type.sizes
    return x.type.reshape(*rest, b, a)


@_typed
def reshape(x: Recipe, shape: tuple[int, ...]) -> Tensor:
    """The same values under another shape; block layouts keep their rows."""
    _need(math.prod(shape) == x.type.count, f"{x.type} as {list(shape)}")
    _need(x.type.elem not in BLOCKS or shape[-1] == x.type.shape[-1], f"rows of {x.type} as {list(shape)}")
    return x.type.reshape(*shape)


@_typed
def rows(x: Recipe, start: int, stop: int) -> Tensor:
    """x[start:stop] along the first axis; block layouts keep whole rows."""
    _need(0 <= start < stop <= x.type.sizes[0], f"rows {start}:{stop} of {x.type}")
    return x.type.reshape(stop - start, *x.type.shape[1:])


@_typed
def concat(*parts: Recipe) -> Tensor:
    """Parts stacked along the first axis."""
    first = parts[0].type
    _need(all((p.type.elem, p.type.shape[1:]) == (first.elem, first.shape[1:]) for p in parts),
          f"concat of {', '.join(str(p.type) for p in parts)}")
    return first.reshape(sum(p.type.sizes[0] for p in parts), *first.shape[1:])


@_typed
def stack(*parts: Recipe) -> Tensor:
    """Parts of one type along a new first axis."""
    first = parts[0].type
    _need(all(p.type == first for p in parts), f"stack of {', '.join(dict.fromkeys(str(p.type) for p in parts))}")
    return first.reshape(len(parts), *first.shape)


@_typed
def interleave(a: Recipe, b: Recipe) -> Tensor:
    """[X,F,...] twice to [X,2F,...]: a's rows at even places, b's at odd ones."""
    _need(a.type == b.type and a.type.rank > 1, f"interleave of {a.type} and {b.type}")
    n, f, *rest = a.type.sizes
    return a.type.reshape(n, 2 * f, *rest)


@_typed
def join(a: Recipe, b: Recipe) -> Tensor:
    """[X,F,...] and [X,G,...] to [X,F+G,...]."""
    _need(a.type.elem == b.type.elem and a.type.shape[0] == b.type.shape[0] and a.type.shape[2:] == b.type.shape[2:],
          f"join of {a.type} and {b.type}")
    n, f, *rest = a.type.sizes
    return a.type.reshape(n, f + b.type.sizes[1], *rest)


@_typed
def every(x: Recipe, start: int, stop: int, step: int) -> Tensor:
    """x[:, start:stop:step]; block layouts keep whole rows."""
    _need(x.type.rank > (2 if x.type.elem in BLOCKS else 1) and 0 <= start < stop <= x.type.sizes[1] and step > 0,
          f"every {step} of {start}:{stop} of {x.type}")
    return x.type.reshape(x.type.sizes[0], len(range(start, stop, step)), *x.type.shape[2:])


@_typed
def unpermute(x: Recipe, heads: int) -> Tensor:
    """Rows of each head from pairs (2i, 2i+1), as llama.cpp's converter writes them, back to halves (i, i+d/2)."""
    _need(x.type.sizes[0] % (2 * heads) == 0, f"unpermute of {x.type} over {heads} heads")
    return x.type


@_typed
def group_rows(x: Recipe, groups: int, start: int, stop: int) -> Tensor:
    """Rows start:stop of each of `groups` equal runs of rows, one after another; block layouts keep whole rows."""
    count = x.type.sizes[0]
    _need(groups > 0 and count % groups == 0 and 0 <= start < stop <= count // groups,
          f"rows {start}:{stop} of each of {groups} groups of {x.type}")
    return x.type.reshape(groups * (stop - start), *x.type.shape[1:])


@_typed
def mxfp4(blocks: Recipe, scales: Recipe) -> Tensor:
    """u8 [..., K/32, 16], two neighbours a byte with the first in its low bits, and exponents u8 [..., K/32]: mxfp4 [..., K]."""
    *rows, count, width = blocks.type.sizes
    _need(blocks.type.elem == scales.type.elem == "u8" and width == 16 and scales.type.shape == (*rows, count),
          f"mxfp4 of {blocks.type} and {scales.type}")
    return Tensor("mxfp4", (*rows, 32 * count))


@_typed
def f8_e4m3(codes: Recipe, factors: Recipe, rows: int, columns: int) -> Tensor:
    """FP8 codes [N,K], each times the factor of its block of rows x columns, in f32."""
    n, k = codes.type.sizes
    _need(codes.type.elem == FP8 and factors.type.elem in FLOATS and rows > 0 and columns > 0
          and factors.type.shape == (-(-n // rows), -(-k // columns)), f"f8_e4m3 of {codes.type} and {factors.type}")
    return codes.type.of("f32")


@_typed
def quantise(x: Recipe, elem: str) -> Tensor:
    """Floats rounded to blocks, as ggml's quantize_row_*_ref computes them."""
    _need(x.type.elem in FLOATS and elem in ROUNDED.values() and x.type.rank in (2, 3)
          and x.type.sizes[-1] % BLOCKS[elem].size == 0, f"quantise of {x.type} to {elem}")
    return x.type.of(elem)


@_typed
def dequant(x: Recipe) -> Tensor:
    """Block layout to f32, as ggml's dequantize_row_* computes it."""
    _need(x.type.elem in BLOCKS, f"dequant of {x.type}")
    return x.type.of("f32")


@_typed
def quants(x: Recipe, bits: int) -> Tensor:
    """The blocks' integers, made unsigned, in MatMulNBits order: u8 [..., N, K/block, block*bits/8], low bits first."""
    block = _block(x)
    *rows, k = x.type.sizes
    return Tensor("u8", (*rows, k // block, block * bits // 8))


@_typed
def scales(x: Recipe) -> Tensor:
    """One f32 factor per block: [..., N, K/block]."""
    block = _block(x)
    *rows, k = x.type.sizes
    return Tensor("f32", (*rows, k // block))


@_typed
def offsets(x: Recipe) -> Tensor:
    """What an affine block adds beyond scale*(q - 2^(bits-1)): f32 [..., N, K/block]."""
    return scales(x)


@_typed
def spread(x: Recipe, times: int) -> Tensor:
    """Each value of the last axis so many times over."""
    _need(x.type.elem not in BLOCKS and times > 0, f"spread of {x.type}")
    return x.type.reshape(*x.type.shape[:-1], x.type.sizes[-1] * times)


@_typed
def fill(value: float, shape: tuple[int, ...]) -> Tensor:
    """f32, the same value everywhere."""
    return Tensor("f32", shape)


@_typed
def block_rows(blocks: int, block: int, bits: int) -> Tensor:
    """Rows in MatMulNBits order, u8 [blocks, blocks, block*bits/8], whose products are the sums of x over each block: integers
    of 1 in a row's own block and of 0 elsewhere."""
    return Tensor("u8", (blocks, blocks, block * bits // 8))


def _block(x: Recipe) -> int:
    """Values that share one scale; for the super-block kinds that is less than their storage block."""
    _need(x.type.elem in PACKINGS and x.type.rank in (2, 3), f"{x.type} has no integer blocks that a kernel takes")
    _need(x.type.sizes[-1] % BLOCKS[x.type.elem].size == 0, f"a row of {x.type} is not a whole number of blocks")
    return PACKINGS[x.type.elem].size


@_typed
def view(name: str, type: Tensor) -> Tensor:
    """The bytes of another weight of the graph under this type; they are on disk once."""
    return type


@_typed
def rope_freqs(theta: float, dim: int, kind: str, *params: float | bool) -> Tensor:
    """f32 [dim/2] radians per position; kinds and formulas: see passes/fold_rope.py."""
    return Tensor("f32", (dim // 2,))


# Recipes that take less time to compute when the model is loaded than space to store.
COMPUTED = ("rope_cos", "rope_sin")


@_typed
def rope_cos(freqs: Recipe, positions: int, magnitude: float) -> Tensor:
    """f32 [positions, dim/2]: magnitude * cos(position * freq), the angle in f32."""
    return Tensor("f32", (positions, *freqs.type.shape))


@_typed
def rope_sin(freqs: Recipe, positions: int, magnitude: float) -> Tensor:
    """f32 [positions, dim/2]: magnitude * sin(position * freq), the angle in f32."""
    return Tensor("f32", (positions, *freqs.type.shape))
