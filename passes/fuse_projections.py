"""Products that read the same input become one product over stacked weights."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from uaii.ir.core import Value, Weight
from uaii.ir.ops import Gated, Gqa, Halves, Linear
from uaii.ir.recipe import make
from uaii.passes.base import Answer, Pass, Rewrite, Why


def stacked(rw: Rewrite, name: str, values: Sequence[Value | None]) -> Linear | Why:
    """One linear for several over the same x; the reason when they cannot be stacked."""
    parts = [rw.producer(v, Linear) for v in values]
    if any(p is None for p in parts):
        return Why("they are not all products")
    linears = [p for p in parts if p is not None]
    weights, biases = [p.weight for p in linears], [p.bias for p in linears]
    if any(p.x is not linears[0].x for p in linears):
        return Why("the products read different inputs")
    if not all(isinstance(w, Weight) for w in (*weights, *(b for b in biases if b is not None))):
        return Why("a weight or bias is computed at run time")
    if len({w.type.elem for w in weights}) > 1:
        return Why(f"the weights are stored differently: {', '.join(w.type.elem for w in weights)}")
    if len({b is None for b in biases}) > 1:
        return Why("some have a bias and some have none")
    bias = None
    if biases[0] is not None:
        if len({b.type.elem for b in biases if b is not None}) > 1:
            return Why("the biases are stored differently")
        bias = _stack(rw, f"{name}.bias", [b for b in biases if isinstance(b, Weight)])
    return Linear(linears[0].x, _stack(rw, name, [w for w in weights if isinstance(w, Weight)]), bias)


def _stack(rw: Rewrite, name: str, parts: list[Weight]) -> Weight:
    return rw.weight(name, make("concat", *(p.recipe for p in parts)), *parts)


def _stem(value: Value, part: str) -> str:
    """The name of the block whose `part` this product is, by its weight."""
    linear = value.op
    name = linear.weight.name if isinstance(linear, Linear) and isinstance(linear.weight, Weight) else part
    return name.removesuffix(f".{part}")


@dataclass(frozen=True)
class FuseQkv(Pass):
    """gqa(q, k, v) of three products of one input becomes gqa over one product."""

    name = "fuse-qkv"
    why = "q, k and v read the same input: one product over stacked rows, which the attention kernel takes whole"
    root = Gqa

    def rule(self, op: Gqa, rw: Rewrite) -> Answer:
        if op.k is None or op.v is None:
            return None
        stem = _stem(op.q, "q")
        one = stacked(rw, f"{stem}.qkv", (op.q, op.k, op.v))
        if isinstance(one, Why):
            return one
        one.out.name = f"{stem}.qkv"
        return Gqa(one.out, None, None, op.past_k, op.past_v, op.lengths, op.total, op.cos, op.sin, op.sinks, op.positions,
                   heads=op.heads, kv_heads=op.kv_heads, scale=op.scale, softcap=op.softcap, window=op.window,
                   interleaved=op.interleaved).results


@dataclass(frozen=True)
class FuseGateUp(Pass):
    """act(gate x) * (up x) becomes one product cut into halves."""

    name = "fuse-gate-up"
    why = "gate and up read the same input: one product over stacked rows"
    root = Gated

    def rule(self, op: Gated, rw: Rewrite) -> Answer:
        stem = _stem(op.gate, "gate")
        one = stacked(rw, f"{stem}.gate_up", (op.gate, op.up))
        if isinstance(one, Why):
            return one
        one.out.name = f"{stem}.gate_up"
        gate, up = Halves(one.out).results
        gate.name, up.name = op.gate.name, op.up.name
        return Gated(gate, up, act=op.act).results
