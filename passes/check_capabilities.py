"""Nothing is written unless the target can run all of it."""
from __future__ import annotations

from dataclasses import dataclass

from uaii.ir.core import Graph
from uaii.ir.diag import Unsupported
from uaii.ir.loc import join, site
from uaii.ir.target import Target
from uaii.passes.base import Entry, GraphPass


@dataclass(frozen=True)
class CheckCapabilities(GraphPass):
    """Asks the target's table about every op; all refusals come in one Unsupported C401."""

    target: Target
    name = "check-capabilities"
    why = "every op has a kernel for its attributes and types"

    def whole(self, graph: Graph) -> tuple[Graph, list[Entry]]:
        refused = [(op, why) for op in graph.ops if (why := self.target.refuses(op)) is not None]
        if refused:
            notes = list(dict.fromkeys(f"{op.name} at {site(op.loc)}: {why}" for op, why in refused))
            count = f"{len(refused)} op{'' if len(refused) == 1 else 's'}"
            where = join(*(op.loc for op, _ in refused[:4] if op.loc is not None))
            raise Unsupported("C401", f"{self.target.name} cannot run {count} of this model: {refused[0][1]}", where,
                              why="an op that runs differently from what the model means would give wrong tokens",
                              hint="nothing was written", notes=notes[:20])
        return graph, [Entry(self.name, "", f"{len(graph.ops)} ops, all have a kernel", applied=True)]
