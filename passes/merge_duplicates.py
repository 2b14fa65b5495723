"""Ops that compute the same thing from the same values are kept once."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from uaii.ir.core import Builder, Graph, Op, Value
from uaii.ir.loc import site
from uaii.passes.base import Entry, GraphPass, copy, sweep


@dataclass(frozen=True)
class MergeDuplicates(GraphPass):
    """Common-subexpression elimination: the first of equal ops serves all."""

    name = "merge-duplicates"
    why = "the same op over the same values is computed once"

    def whole(self, graph: Graph) -> tuple[Graph, list[Entry]]:
        new = Graph(graph.name, graph.stage, list(graph.inputs), dict(graph.weights), dict(graph.dims),
                    output_names=list(graph.output_names))
        builder, now, first, journal = Builder(new), dict[Value, Value](), dict[Any, Op](), list[Entry]()
        for op in graph.ops:
            what = (type(op), *(id(now.get(v, v)) if isinstance(v := getattr(op, n), Value) else None
                                for n in op.operand_names), *(getattr(op, n) for n in op.attr_names))
            if what in first:
                journal.append(Entry(self.name, site(op.loc), self.why, applied=True))
            else:
                first[what] = copy(op, now, builder)
            now |= zip(op.results, first[what].results, strict=True)
        new.outputs = [now.get(v, v) for v in graph.outputs]
        return sweep(new), journal
