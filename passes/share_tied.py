"""A table that serves two kernels under two shapes is on disk once."""
from __future__ import annotations

from dataclasses import dataclass

from uaii.ir.core import Graph, Value, Weight
from uaii.ir.loc import By
from uaii.ir.recipe import Recipe, make
from uaii.passes.base import Entry, GraphPass, with_weights


@dataclass(frozen=True)
class ShareTied(GraphPass):
    """Weights whose recipes differ in shape only become views of the first."""

    name = "share-tied"
    why = "the embedding table and the head read the same bytes"

    def whole(self, graph: Graph) -> tuple[Graph, list[Entry]]:
        owners: dict[Recipe, Weight] = {}
        views: dict[Value, Value] = {}
        journal: list[Entry] = []
        for w in graph.weights.values():
            owner = owners.setdefault(_bytes_of(w.recipe), w)
            if owner is not w:
                whence = By(self.name, self.why, (w.loc,) if w.loc else ())
                views[w] = Weight(w.type, w.name, recipe=make("view", owner.name, w.type), loc=whence)
                journal.append(Entry(self.name, w.name, f"{w.type.nbytes} bytes of @{owner.name}", applied=True))
        return with_weights(graph, views), journal


def _bytes_of(recipe: Recipe) -> Recipe:
    while recipe.op == "reshape":
        recipe = recipe.args[0]
    return recipe
