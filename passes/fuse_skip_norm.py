"""A residual sum and the norm that reads it become one kernel."""
from __future__ import annotations

from dataclasses import dataclass

from uaii.ir.ops import Add, RmsNorm, SkipRmsNorm
from uaii.passes.base import Answer, Pass, Rewrite, Why


@dataclass(frozen=True)
class FuseSkipNorm(Pass):
    """rms_norm(a + b) becomes skip_rms_norm(a, b), which also yields a + b."""

    name = "fuse-skip-norm"
    why = "SkipSimplifiedLayerNormalization yields the sum and its norm together"
    root = RmsNorm

    def rule(self, op: RmsNorm, rw: Rewrite) -> Answer:
        if op.offset != 0.0:
            return Why("the offset is not folded yet")
        add = rw.producer(op.x, Add)
        if add is None:
            return None
        if op.x.type.rank > 3:
            return Why("the kernel takes a batch of rows, not of heads")
        made = SkipRmsNorm(add.a, add.b, op.weight, eps=op.eps)
        made.results[1].name = op.x.name
        rw.also(op.x, made.results[1])
        return made.results[:1]
