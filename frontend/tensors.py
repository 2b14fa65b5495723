"""Where a family's weights are stored, and what the source did to them that a recipe has to undo."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from uaii.frontend.pairs import Pair
from uaii.ir.known import plain
from uaii.ir.recipe import Recipe, make
from uaii.ir.types import BLOCKS

Shape = tuple[int, ...]


class Undo(Protocol):
    """One thing a source did to a weight: the shape it is stored in, and the recipe that brings it back."""

    def stored(self, shape: Shape, c: Any) -> Shape: ...

    def apply(self, recipe: Recipe, shape: Shape, c: Any) -> Recipe: ...


@dataclass(frozen=True)
class Unpermute:
    """llama.cpp's converter interleaves the two halves of each head's rows; `heads` names the config entry."""

    heads: str

    def stored(self, shape: Shape, c: Any) -> Shape:
        return shape

    def apply(self, recipe: Recipe, shape: Shape, c: Any) -> Recipe:
        return make("unpermute", recipe, getattr(c, self.heads))


@dataclass(frozen=True)
class Rows:
    """Several weights stacked along the rows of one tensor; this is number `index` of `sizes(config)`."""

    index: int
    sizes: Callable[[Any], Shape]

    def stored(self, shape: Shape, c: Any) -> Shape:
        return (sum(plain(n) for n in self.sizes(c)), *shape[1:])

    def apply(self, recipe: Recipe, shape: Shape, c: Any) -> Recipe:
        sizes = [plain(n) for n in self.sizes(c)]
        start = sum(sizes[:self.index])
        return make("rows", recipe, start, start + sizes[self.index])


@dataclass(frozen=True)
class GroupedHeads:
    """q, k and v in one tensor, per key head: the rows of its query heads, of the key, of the value; this is `part`.

    The groupings of GPT-NeoX (one query head per group), Falcon 40B, and Falcon 7B (one group). Source: transformers
    modeling_gpt_neox.py and modeling_falcon.py.
    """

    part: str

    def stored(self, shape: Shape, c: Any) -> Shape:
        return (plain((c.heads + 2 * c.kv_heads) * c.head_dim), *shape[1:])

    def apply(self, recipe: Recipe, shape: Shape, c: Any) -> Recipe:
        queries, d = c.heads // c.kv_heads, c.head_dim
        start, stop = {"q": (0, queries), "k": (queries, queries + 1), "v": (queries + 1, queries + 2)}[self.part]
        return make("group_rows", recipe, c.kv_heads, start * d, stop * d)


@dataclass(frozen=True)
class HeadRows:
    """Several weights whose rows stand head by head in one tensor; this is number `index` of `sizes(config)`, rows of a head."""

    index: int
    sizes: Callable[[Any], Shape]

    def stored(self, shape: Shape, c: Any) -> Shape:
        return (plain(c.heads) * sum(plain(n) for n in self.sizes(c)), *shape[1:])

    def apply(self, recipe: Recipe, shape: Shape, c: Any) -> Recipe:
        sizes = [plain(n) for n in self.sizes(c)]
        start = sum(sizes[:self.index])
        return make("group_rows", recipe, c.heads, start, start + sizes[self.index])


@dataclass(frozen=True)
class Stacked:
    """[X,N,K] stored as [X*N,K]; `count` names the config entry that is X."""

    count: str

    def stored(self, shape: Shape, c: Any) -> Shape:
        return (shape[0] * shape[1], *shape[2:])

    def apply(self, recipe: Recipe, shape: Shape, c: Any) -> Recipe:
        rows, n = recipe.type.sizes[0], int(plain(getattr(c, self.count)))
        return make("reshape", recipe, (n, rows // n, *recipe.type.sizes[1:]))


@dataclass(frozen=True)
class Alternate:
    """Two weights [X,N,...] whose rows alternate in one tensor [X,2N,...]; this is number `index`."""

    index: int

    def stored(self, shape: Shape, c: Any) -> Shape:
        return (shape[0], 2 * shape[1], *shape[2:])

    def apply(self, recipe: Recipe, shape: Shape, c: Any) -> Recipe:
        return make("every", recipe, self.index, recipe.type.sizes[1], 2)


@dataclass(frozen=True)
class EachRows:
    """[X,N,K] stacked with others along N in one tensor; this is number `index` of `sizes(config)`."""

    index: int
    sizes: Callable[[Any], Shape]

    def stored(self, shape: Shape, c: Any) -> Shape:
        return (shape[0], sum(plain(n) for n in self.sizes(c)), *shape[2:])

    def apply(self, recipe: Recipe, shape: Shape, c: Any) -> Recipe:
        sizes = [plain(n) for n in self.sizes(c)]
        start = sum(sizes[:self.index])
        return make("every", recipe, start, start + sizes[self.index], 1)


@dataclass(frozen=True)
class Flat:
    """[1,K] stored as [K]."""

    def stored(self, shape: Shape, c: Any) -> Shape:
        return shape[1:]

    def apply(self, recipe: Recipe, shape: Shape, c: Any) -> Recipe:
        return make("reshape", recipe, shape)


@dataclass(frozen=True)
class Transposed:
    """Stored with its last two axes exchanged (GPT-2's Conv1D, DeepSeek's k_b); blocks become f32."""

    def stored(self, shape: Shape, c: Any) -> Shape:
        return (*shape[:-2], shape[-1], shape[-2])

    def apply(self, recipe: Recipe, shape: Shape, c: Any) -> Recipe:
        return make("transpose", make("dequant", recipe) if recipe.type.elem in BLOCKS else recipe)


@dataclass(frozen=True)
class At:
    """A stored tensor ({i} is the layer) and what to undo, outermost first.

    With `stack`, a config entry, the weight is that many tensors ({j} is the number of each) along a new first axis. With a
    `pair` it is two.
    """

    name: str
    undo: tuple[Undo, ...] = ()
    stack: str = ""
    pair: Pair | None = None

    def names(self, c: Any) -> tuple[str, ...]:
        """The stored tensors of a place whose layer is filled in."""
        if self.pair is not None:
            return self.pair.names(self.name)
        return tuple(self.name.format(j=j) for j in range(getattr(c, self.stack))) if self.stack else (self.name,)


@dataclass(frozen=True)
class Where:
    """The places a weight may be stored in, by format; the first that the checkpoint has is used."""

    hf: tuple[At, ...]
    gguf: tuple[At, ...]

    def places(self, fmt: str) -> tuple[At, ...]:
        return self.hf if fmt == "hf" else self.gguf


def where(hf: str | At | tuple[At, ...] = (), gguf: str | At | tuple[At, ...] = ()) -> Where:
    """Declares a weight's places; a string is a tensor stored as it is."""

    def places(x: str | At | tuple[At, ...]) -> tuple[At, ...]:
        return (At(x),) if isinstance(x, str) else (x,) if isinstance(x, At) else x

    return Where(places(hf), places(gguf))
