"""Attention to the GroupQueryAttention kernel, and as much rotation into it as it can take."""
from __future__ import annotations

from dataclasses import dataclass

from uaii.ir.core import Input, Value, Weight
from uaii.ir.ops import (
    Attention,
    Gqa,
    KeyLengths,
    MergeHeads,
    Positions,
    Rope,
    RopeTable,
    Rotary,
    SplitHeads,
    TotalLength,
)
from uaii.ir.recipe import make
from uaii.ir.stages import Stage
from uaii.ir.target import Target
from uaii.ir.types import Tensor
from uaii.passes.base import Answer, Pass, Rewrite, Why

WINDOW_START = "window_start"


@dataclass(frozen=True)
class LowerAttention(Pass):
    """attention over heads becomes gqa over [B,S,n*d]; masking is by lengths, as the kernel counts them.

    The kernel visits every cached key and then drops those outside the window. So a layer whose window is shorter than the
    context counts from the optional input `window_start`: who runs the graph may hand over the cache from that key on.
    """

    context: int
    name = "lower-attention"
    why = "GroupQueryAttention appends to the cache in place and attends in one kernel"
    root = Attention
    stage_out = Stage.ORT

    def rule(self, op: Attention, rw: Rewrite) -> Answer:
        start = window_start(rw) if 0 < op.window < self.context else None
        lengths, total = KeyLengths(op.mask, start).out, TotalLength(op.mask, start).out
        q, k, v = (MergeHeads(x).out for x in (op.q, op.k, op.v))
        return Gqa(q, k, v, op.past_k, op.past_v, lengths, total, sinks=op.sinks, heads=int(op.q.type.shape[2]),
                   kv_heads=int(op.k.type.shape[2]), scale=op.scale, softcap=op.softcap, window=op.window).results


@dataclass(frozen=True)
class FuseRope(Pass):
    """rope on q and k goes into gqa when the table is constant, the same for both, and within the kernel's limits."""

    target: Target
    context: int
    name = "fuse-rope"
    why = "the attention kernel rotates q and k itself, by a constant table of cosines and sines"
    root = Gqa

    def rule(self, op: Gqa, rw: Rewrite) -> Answer:
        if op.cos is not None or op.sin is not None or op.interleaved:
            return None
        merged = rw.producer(op.q, MergeHeads), rw.producer(op.k, MergeHeads)
        if merged[0] is None or merged[1] is None:
            return None
        q, k = rw.producer(merged[0].x, Rope), rw.producer(merged[1].x, Rope)
        if q is None or k is None:
            return Why("q and k are not both rotated right before attention")
        if not isinstance(q.freqs, Weight) or q.freqs is not k.freqs:
            return Why("the frequencies are computed at run time, or differ between q and k")
        if unfolded(q):
            return Why("the rotation is not folded yet")
        if (q.dim, q.interleaved, q.magnitude) != (k.dim, k.interleaved, k.magnitude):
            return Why("q and k are rotated differently")
        where, lengths = rw.beside(q.positions, Positions), rw.beside(op.lengths, KeyLengths)
        if where is None or lengths is None or q.positions is not k.positions or where.mask is not lengths.mask:
            return Why("positions are not counted from the mask; the kernel counts them itself")
        cos, sin = (rw.weight(f"rope.{part}", make(f"rope_{part}", q.freqs.recipe, self.context, q.magnitude), q.freqs)
                    for part in ("cos", "sin"))
        at = q.positions if lengths.start is not None else None
        made = Gqa(merge(q.x), merge(k.x), op.v, op.past_k, op.past_v, op.lengths, op.total, cos, sin, op.sinks, at,
                   heads=op.heads, kv_heads=op.kv_heads, scale=op.scale, softcap=op.softcap, window=op.window,
                   interleaved=q.interleaved)
        refusal = self.target.refuses(made)
        return Why(refusal) if refusal else made.results


@dataclass(frozen=True)
class LowerRope(Pass):
    """A rotation that stays outside attention: its cosines and sines for these positions, then one rotary node."""

    name = "lower-rope"
    why = "positions of this call are rotated by a table computed once per call"
    root = Rope

    def rule(self, op: Rope, rw: Rewrite) -> Answer:
        if op.freqs is None or unfolded(op):
            return Why("the rotation is not folded yet")
        assert op.dim == 2 * int(op.freqs.type.shape[-1])
        cos, sin = RopeTable(op.positions, op.freqs, magnitude=op.magnitude).results
        heads = int(op.x.type.shape[2])
        return SplitHeads(Rotary(merge(op.x), cos, sin, heads=heads, interleaved=op.interleaved).out, n=heads).results


@dataclass(frozen=True)
class FoldHeads(Pass):
    """merge_heads of split_heads is what was there before."""

    name = "fold-heads"
    why = "heads are split and merged again with nothing between"
    root = MergeHeads

    def rule(self, op: MergeHeads, rw: Rewrite) -> Answer:
        split = rw.producer(op.x, SplitHeads)
        if split is None:
            return None
        assert split.n == op.x.type.shape[2]
        return (split.x,)


def window_start(rw: Rewrite) -> Value:
    """The optional input that says at which key the caches of layers with a window begin: i64 [], 0 unless it is given."""
    found = next((v for v in rw.graph.inputs if v.name == WINDOW_START), None)
    if found is None:
        found = Input(Tensor("i64", ()), WINDOW_START, default=0)
        rw.graph.inputs.append(found)
    return found


def unfolded(op: Rope) -> bool:
    """Whether the rotation still states where its frequencies come from."""
    stated = op.theta, op.scaling, op.divisors, op.long_divisors, op.length
    return any(x is not None for x in stated)


def merge(x: Value) -> Value:
    return MergeHeads(x).out
