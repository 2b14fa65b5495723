"""Declares that nothing of the configuration is left to interpret."""
from __future__ import annotations

from dataclasses import dataclass, replace

from uaii.ir.core import Graph
from uaii.ir.diag import Internal
from uaii.ir.ops import LayerNorm, RmsNorm, Rope
from uaii.ir.stages import Stage
from uaii.passes.base import Entry, GraphPass


@dataclass(frozen=True)
class EnterCore(GraphPass):
    """model -> core: refuses a graph in which a rotation still has a base or a norm an offset."""

    name = "enter-core"
    why = "every rotation has its frequencies and every norm its final weight"

    def whole(self, graph: Graph) -> tuple[Graph, list[Entry]]:
        for op in graph.ops:
            if isinstance(op, Rope) and op.freqs is None:
                raise Internal("P202", "a rotation still states theta: fold-rope has not run", op.loc)
            if isinstance(op, RmsNorm | LayerNorm) and op.offset != 0.0:
                raise Internal("P202", "a norm still has an offset: fold-norm-offset has not run or declined", op.loc)
        return replace(graph, stage=Stage.CORE), [Entry(self.name, "", self.why, applied=True)]
