"""Float weights in the type that the target computes in."""
from __future__ import annotations

from dataclasses import dataclass

from uaii.ir.core import Op, Value, Weight
from uaii.ir.recipe import make
from uaii.ir.types import FLOATS
from uaii.passes.base import Answer, Pass, Rewrite


@dataclass(frozen=True)
class WidenWeights(Pass):
    """Any op over bf16, f16 or f64 weights becomes the op over their f32 values."""

    name = "widen-weights"
    why = "the CPU kernels compute in f32"
    root = Op

    def rule(self, op: Op, rw: Rewrite) -> Answer:
        narrow = {n: v for n in op.operand_names if isinstance(v := getattr(op, n), Weight) and _float(v)}
        if not narrow:
            return None
        wide: dict[str, Value | None] = {n: rw.weight(f"{v.name}.f32", make("cast", v.recipe, "f32"), v)
                                         for n, v in narrow.items()}
        return rw.remake(op, **wide).results


def _float(v: Value) -> bool:
    return v.type.elem in FLOATS and v.type.elem != "f32"
