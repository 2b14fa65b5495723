"""Weights as the reference reads them: by rows where an op takes them so, and otherwise one op at a time."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from uaii.backends import blocks, recipes
from uaii.backends.slices import divides, part
from uaii.ir.core import Graph, Weight
from uaii.ir.recipe import Recipe
from uaii.ir.types import FLOATS

Array = Any  # NumPy's own stubs widen to Any at every turn
AT_ONCE = 1 << 22  # f64 values of a weight that one product holds
KEPT = 64 << 20    # bytes of a weight that stays between two ops; a larger one is computed again


def widen(values: Array, elem: str) -> Array:
    """Stored values as the reference computes with them: floats and blocks as f64, packed integers as they are."""
    if elem in FLOATS:
        return recipes.widen(values, elem).astype(np.float64)
    if elem in recipes.DTYPES:
        return values
    return blocks.dequantise(values, elem).astype(np.float64)


@dataclass
class Rows:
    """A weight that is read along its first axis: an index, a slice, or an array of indices, as of an array. Only those rows
    are computed, where the recipe can be cut; where it cannot, the whole is held as it is stored."""

    recipe: Recipe
    source: recipes.Source
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, at: int | slice | Array) -> Array:
        if isinstance(at, slice):
            start, stop, _ = at.indices(len(self))
            return self._between(start, stop)
        ids, where = np.unique(np.asarray(at), return_inverse=True)
        found = np.concatenate([self._between(int(i), int(i) + 1) for i in ids])
        return found[where.reshape(np.shape(at))]

    def _between(self, start: int, stop: int) -> Array:
        cut = recipes.evaluate(part(self.recipe, start, stop), self.source) if divides(self.recipe) else self._whole[start:stop]
        return widen(cut, self.recipe.type.elem).reshape(stop - start, *self.shape[1:])

    @cached_property
    def _whole(self) -> Array:
        return recipes.evaluate(self.recipe, self.source)


def stretches(rows: int, width: int) -> Iterator[slice]:
    """Slices of so many rows of `width` values, AT_ONCE each."""
    step = max(1, AT_ONCE // max(1, width))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def rows(w: Weight, graph: Graph, source: recipes.Source) -> Rows | None:
    """The weight by its rows; None for a view that counts other rows than the weight whose bytes it shows."""
    shown = graph.weights[w.recipe.args[0]] if w.recipe.op == "view" else w
    if not w.type.rank or shown.type.sizes[0] != w.type.sizes[0]:
        return None
    return Rows(shown.recipe, source, w.type.sizes)


def whole(w: Weight, graph: Graph, source: recipes.Source) -> Array:
    """All of a weight's values."""
    if w.recipe.op == "view":
        return whole(graph.weights[w.recipe.args[0]], graph, source).reshape(w.type.sizes)
    return widen(recipes.evaluate(w.recipe, source), w.type.elem)


@dataclass
class Weights:
    """The weights of a graph, handed to one op after the other; what several ops take stays while it is small."""

    graph: Graph
    source: recipes.Source
    kept: dict[Weight, Array] = field(default_factory=dict)

    @cached_property
    def left(self) -> Counter[Weight]:
        """How many operands and outputs are still to take each."""
        taken = [v for op in self.graph.ops for v in op.operands] + self.graph.outputs
        return Counter(v for v in taken if isinstance(v, Weight))

    def take(self, w: Weight, by_rows: bool = False) -> Array | Rows:
        """The values for one operand, as rows on demand where the op reads it so."""
        self.left[w] -= 1
        if by_rows and (found := rows(w, self.graph, self.source)) is not None:
            return found
        values = self.kept.pop(w) if w in self.kept else whole(w, self.graph, self.source)
        if self.left[w] and values.nbytes <= KEPT:
            self.kept[w] = values
        return values


def held(w: Weight, by_rows: bool) -> int:
    """Bytes that an op needs for this operand at least: f64 of all, or of a slice with the stored whole that it is cut from."""
    if not by_rows:
        return 8 * w.type.count
    return 8 * min(AT_ONCE, w.type.count) + (0 if divides(w.recipe) else w.type.nbytes)

