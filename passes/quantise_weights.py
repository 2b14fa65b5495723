"""Float matrices rounded to block layouts, where the user asked for it: --weights int8 and int4."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from uaii.ir.core import Graph, Op, Value, Weight
from uaii.ir.loc import By, site
from uaii.ir.ops import Embedding, LatentAttention, Linear, MixtureOfExperts
from uaii.ir.recipe import Recipe, make
from uaii.ir.types import BLOCKS, FLOATS, ROUNDED
from uaii.passes.base import Entry, GraphPass, with_weights

MATRICES: dict[type[Op], tuple[str, ...]] = {
    Linear: ("weight",), Embedding: ("table",), MixtureOfExperts: ("gate", "up", "down"), LatentAttention: ("k_up", "v_up")}
FEW = 32  # rows below which a matrix is a gate or a score, and costs nothing


@dataclass(frozen=True)
class QuantiseWeights(GraphPass):
    """Products, experts and token tables over floats get their values from blocks of `bits` bits.

    Tables and the head take 8 bits at least. What stays as it is: blocks that the file has already; routers, whose near-ties
    choose experts; what latent attention folds into queries; matrices of few rows; rows that are no whole number of blocks.
    """

    bits: int
    name = "quantise-weights"
    why = "asked for: floats are rounded to the nearest value of a block"

    def whole(self, graph: Graph) -> tuple[Graph, list[Entry]]:
        found: dict[Weight, tuple[Op, int]] = {}
        kept: dict[Weight, tuple[Op, str]] = {}
        routers = {op.logits.op for op in graph.ops if isinstance(op, MixtureOfExperts)}
        for op in graph.ops:
            mine = list(_matrices(op))
            reason = "its scores choose the experts of a token" if op in routers else _unfit(op, mine)
            for w in mine:
                if said := _settled(w) or reason:
                    kept.setdefault(w, (op, said))
                elif w not in found or self._bits(op) > found[w][1]:
                    found[w] = op, self._bits(op)
        now: dict[Value, Value] = {}
        journal = [Entry(self.name, site(op.loc), says, applied=False) for op, says in kept.values()]
        for w, (op, bits) in found.items():
            if w not in kept:
                recipe = _rounded(w.recipe, ROUNDED[bits])
                whence = By(self.name, self.why, (w.loc,) if w.loc else ())
                now[w] = Weight(recipe.type, w.name, recipe=recipe, loc=whence)
                journal.append(Entry(self.name, site(op.loc), f"{w.type.elem} becomes {recipe.type.elem}", applied=True))
        return with_weights(graph, now), journal

    def _bits(self, op: Op) -> int:
        """Rows of a table and logits reach the result with nothing after them to even out."""
        head = isinstance(op, Linear) and "L" in op.x.type.shape
        return max(self.bits, 8) if head or isinstance(op, Embedding) else self.bits


def _matrices(op: Op) -> Iterator[Weight]:
    for n in MATRICES.get(type(op), ()):
        if isinstance(w := getattr(op, n), Weight):
            yield w


def _unfit(op: Op, matrices: list[Weight]) -> str | None:
    """Why none of an op's matrices can be rounded; experts are packed together or not at all."""
    if isinstance(op, LatentAttention):
        return "latent attention folds it into queries and outputs in f32"
    if isinstance(op, Linear) and op.weight.type.sizes[0] < FEW:
        return f"fewer than {FEW} rows cost nothing"
    odd = next((w for w in matrices if w.type.elem in FLOATS and w.type.sizes[-1] % BLOCKS[ROUNDED[8]].size), None)
    return f"rows of {odd.type.sizes[-1]} values are no whole number of blocks" if odd else None


def _settled(w: Weight) -> str | None:
    return None if w.type.elem in FLOATS else f"stored as {w.type.elem} blocks, which stay exactly as they are"


def _rounded(recipe: Recipe, elem: str) -> Recipe:
    """Each stored tensor of a stack for itself, so that the error of each is known."""
    if recipe.op == "stack":
        return make("stack", *(_rounded(x, elem) for x in recipe.args))
    return make("quantise", recipe, elem)
