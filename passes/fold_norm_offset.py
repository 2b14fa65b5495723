"""Moves a norm's constant offset (1 + weight in Gemma's and Nemotron's norms) into the weight's recipe."""
from __future__ import annotations

from dataclasses import dataclass

from uaii.ir.core import Weight
from uaii.ir.ops import LayerNorm, RmsNorm
from uaii.ir.recipe import make
from uaii.passes.base import Answer, Pass, Rewrite, Why


@dataclass(frozen=True)
class FoldNormOffset(Pass):
    """A norm {offset=o} over w becomes the norm over w + o, added in f32."""

    name = "fold-norm-offset"
    why = "(weight + offset) is constant, so it is computed once, in f32"
    root = RmsNorm, LayerNorm

    def rule(self, op: RmsNorm | LayerNorm, rw: Rewrite) -> Answer:
        if op.offset == 0.0:
            return None
        if not isinstance(op.weight, Weight):
            return Why("the weight is computed at run time")
        shifted = make("add", make("cast", op.weight.recipe, "f32"), op.offset)
        return rw.remake(op, weight=rw.weight(f"{op.weight.name}.plus", shifted, op.weight), offset=0.0).results
