"""Offsets of affine blocks added by the product that computes them, which takes matrices: so the trunk runs on rows."""
from __future__ import annotations

from dataclasses import dataclass, field

from uaii.ir.core import Builder, Graph, Value
from uaii.ir.loc import By
from uaii.ir.ops import (
    Activation,
    Add,
    BlockSum,
    Clamp,
    Cut,
    FlatRows,
    Gated,
    Gemm,
    GridRows,
    GridShape,
    Halves,
    LayerNorm,
    Linear,
    MatMulNBits,
    MergeHeads,
    Mul,
    RmsNorm,
    Scale,
    SkipRmsNorm,
    SplitHeads,
)
from uaii.passes.base import Answer, Entry, GraphPass, Pass, Rewrite, copy, sweep

# Ops that treat every position alone, and say so in no attribute.
ROWWISE = (Activation, Add, BlockSum, Clamp, Cut, Gated, Halves, LayerNorm, Linear, MatMulNBits, MergeHeads, Mul, RmsNorm, Scale,
           SkipRmsNorm, SplitHeads)


def offset_product(added: Value) -> bool:
    """Whether it is a product of block sums."""
    product = added.op
    return isinstance(product, Linear) and isinstance(product.x.op, BlockSum | Cut) and product.bias is None


@dataclass(frozen=True)
class FlattenRows(GraphPass):
    """Ops that treat positions alone run on [B*S,...] where a block's offsets are added; the others get [B,S,...] back."""

    name = "flatten-rows"
    why = "a product that adds to what is there takes matrices"

    def whole(self, graph: Graph) -> tuple[Graph, list[Entry]]:
        if not any(isinstance(op, Add) and offset_product(op.b) for op in graph.ops):
            return graph, [Entry(self.name, "", "no blocks with offsets: nothing is added to a product", applied=False)]
        new = Graph(graph.name, graph.stage, list(graph.inputs), dict(graph.weights), {**graph.dims, "R": ""},
                    output_names=list(graph.output_names))
        grid = _Grid(new, next(v for v in graph.inputs if v.type.shape[:2] == ("B", "S")))
        for op in graph.ops:
            with_rows = isinstance(op, ROWWISE) and any(v.type.shape[:2] == ("B", "S") for v in op.operands)
            made = copy(op, {v: grid.rows(v) if with_rows else grid.positions(v) for v in op.operands}, grid.builder)
            for before, after in zip(op.results, made.results, strict=True):
                (grid.flat if with_rows else grid.full)[before] = after
        new.outputs = [grid.positions(v) for v in graph.outputs]
        return sweep(new), [Entry(self.name, "", self.why, applied=True)]


@dataclass
class _Grid:
    """Values of the old graph in both shapes, made as they are asked for."""

    graph: Graph
    like: Value
    full: dict[Value, Value] = field(default_factory=dict)
    flat: dict[Value, Value] = field(default_factory=dict)
    shapes: dict[tuple[int, ...], Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.builder = Builder(self.graph)

    def rows(self, v: Value) -> Value:
        """v as rows; weights and what has no positions stay as they are."""
        if v in self.flat or v.type.shape[:2] != ("B", "S"):
            return self.flat.get(v, self.full.get(v, v))
        with self.builder.at(self._whence(v)):
            self.flat[v] = FlatRows(self.full.get(v, v)).out
        self.flat[v].name = f"{v.name}.rows"
        return self.flat[v]

    def positions(self, v: Value) -> Value:
        """v as it was."""
        if v in self.full or v not in self.flat:
            return self.full.get(v, v)
        rest = tuple(int(n) for n in v.type.shape[2:])
        with self.builder.at(self._whence(v)):
            if rest not in self.shapes:
                self.shapes[rest] = GridShape(self.like, rest=rest).out
                self.shapes[rest].name = f"grid.{'x'.join(map(str, rest))}"
            self.full[v] = GridRows(self.flat[v], self.shapes[rest]).out
        self.full[v].name, self.flat[v].name = v.name, f"{v.name}.rows"
        return self.full[v]

    @staticmethod
    def _whence(v: Value) -> By:
        loc = v.op.loc if v.op is not None else None
        return By(FlattenRows.name, FlattenRows.why, (loc,) if loc is not None else ())


@dataclass(frozen=True)
class FuseOffsets(Pass):
    """y + block sums @ offsets^T over rows becomes one product that adds."""

    name = "fuse-offsets"
    why = "the product of the offsets adds itself to that of the integers"
    root = Add

    def rule(self, op: Add, rw: Rewrite) -> Answer:
        if not offset_product(op.b) or op.a.type.rank != 2:
            return None
        product = rw.producer(op.b, Linear)
        assert product is not None and product.bias is None
        return Gemm(op.a, product.x, product.weight).results
