"""A test of the tests: rewrites that are wrong on purpose are caught, by the numbers or by the account."""
from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import uir

from uaii.ir.core import Weight
from uaii.ir.diag import Internal
from uaii.ir.ops import Attention, Gated, Gqa, Halves, KeyLengths, Linear, MergeHeads, RmsNorm, Rope, TotalLength
from uaii.ir.parse import parse
from uaii.ir.recipe import make
from uaii.ir.stages import Stage
from uaii.passes.base import Answer, Pass, Rewrite, run

NORM = """graph @g stage=model dims(B, S) (
  %x: f32[B,S,8]
) {
  @w : f32[8] = "norm.weight":f32[8]
  %n = rms_norm %x, @w {eps=1e-06, offset=1.0} : f32[B,S,8]
  return n=%n
}"""
GATED = """graph @g stage=ort dims(B, S) (
  %x: f32[B,S,32]
) {
  @gate : f32[48,32] = "gate.weight":f32[48,32]
  @up : f32[48,32] = "up.weight":f32[48,32]
  %gate = linear %x, @gate : f32[B,S,48]
  %up = linear %x, @up : f32[B,S,48]
  %h = gated %gate, %up {act=silu} : f32[B,S,48]
  return h=%h
}"""
ATTENTION = """graph @g stage=core dims(B, S, P, T=P+S) (
  %q: f32[B,S,4,16]
  %k: f32[B,S,2,16]
  %v: f32[B,S,2,16]
  %past_k: f32[B,2,P,16]
  %past_v: f32[B,2,P,16]
  %mask: i64[B,T]
) {
  %y, %new_k, %new_v = attention %q, %k, %v, %past_k, %past_v, %mask {scale=0.25, window=3} : f32[B,S,64], f32[B,2,T,16], f32[B,2,T,16]
  return y=%y, new_k=%new_k, new_v=%new_v
}"""  # noqa: E501
ROPE = """graph @g stage=model dims(B, S) (
  %x: f32[B,S,2,8]
  %pos: i64[B,S]
) {
  %r = rope %x, %pos {theta=10000.0, dim=8, interleaved=True} : f32[B,S,2,8]
  return r=%r
}"""


@dataclass(frozen=True)
class OffsetTwice(Pass):
    name, why, root = "offset-twice", "wrong: adds the offset to the weight and keeps it", RmsNorm

    def rule(self, op: RmsNorm, rw: Rewrite) -> Answer:
        assert isinstance(op.weight, Weight)
        shifted = make("add", op.weight.recipe, op.offset)
        return RmsNorm(op.x, rw.weight("w.plus", shifted, op.weight), eps=op.eps, offset=op.offset).results


@dataclass(frozen=True)
class OffsetForgotten(Pass):
    name, why, root = "offset-forgotten", "wrong: never reads the offset", RmsNorm

    def rule(self, op: RmsNorm, rw: Rewrite) -> Answer:
        return RmsNorm(op.x, op.weight, eps=op.eps).results


@dataclass(frozen=True)
class GateAndUpSwapped(Pass):
    name, why, root = "gate-and-up-swapped", "wrong: stacks up before gate", Gated

    def rule(self, op: Gated, rw: Rewrite) -> Answer:
        gate, up = rw.producer(op.gate, Linear), rw.producer(op.up, Linear)
        assert gate is not None and up is not None
        assert isinstance(gate.weight, Weight) and isinstance(up.weight, Weight)
        stacked = make("concat", up.weight.recipe, gate.weight.recipe)
        one = Linear(gate.x, rw.weight("gate_up", stacked, gate.weight, up.weight), gate.bias or up.bias).out
        assert up.x is gate.x
        return Gated(*Halves(one).results, act=op.act).results


@dataclass(frozen=True)
class AsKernel(Pass):
    """Attention as the kernel takes it, with the window that a rule below chooses."""

    root, stage_out = Attention, Stage.ORT

    def kernel(self, op: Attention, window: int) -> Answer:
        q, k, v = (MergeHeads(x).out for x in (op.q, op.k, op.v))
        return Gqa(q, k, v, op.past_k, op.past_v, KeyLengths(op.mask).out, TotalLength(op.mask).out, heads=4,
                   kv_heads=2, scale=op.scale, window=window).results


@dataclass(frozen=True)
class WindowUnread(AsKernel):
    name, why = "window-unread", "wrong: never reads the window"

    def rule(self, op: Attention, rw: Rewrite) -> Answer:
        return self.kernel(op, 0)


@dataclass(frozen=True)
class WindowOffByOne(AsKernel):
    name, why = "window-off-by-one", "wrong: counts the window from the token before"

    def rule(self, op: Attention, rw: Rewrite) -> Answer:
        return self.kernel(op, op.window + 1)


@dataclass(frozen=True)
class PairsMistaken(Pass):
    name, why, root = "pairs-mistaken", "wrong: reads that pairs are neighbours, and rotates halves", Rope

    def rule(self, op: Rope, rw: Rewrite) -> Answer:
        table = make("rope_freqs", op.theta, op.dim, "default")
        assert op.interleaved is not None
        return Rope(op.x, op.positions, rw.weight("freqs", table), dim=op.dim).results


@dataclass(frozen=True)
class BaseMistaken(Pass):
    name, why, root = "base-mistaken", "wrong: looks at theta, and uses the usual one", Rope

    def rule(self, op: Rope, rw: Rewrite) -> Answer:
        table = make("rope_freqs", 9000.0 if op.theta else 1.0, op.dim, "default")
        return Rope(op.x, op.positions, rw.weight("freqs", table), dim=op.dim, interleaved=op.interleaved).results


@pytest.mark.parametrize(("text", "wrong"), [
    (NORM, OffsetTwice()), (GATED, GateAndUpSwapped()), (ATTENTION, WindowOffByOne()), (ROPE, PairsMistaken()),
    (ROPE, BaseMistaken())], ids=lambda x: getattr(x, "name", ""))
def test_numbers_catch_a_rule_that_reads_everything_and_is_wrong(text: str, wrong: Pass) -> None:
    before = parse(text)
    after = run(before, [wrong])
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        uir.same_numbers(before, after)


@pytest.mark.parametrize(("text", "wrong", "unread"), [
    (NORM, OffsetForgotten(), "rms_norm.offset"), (ATTENTION, WindowUnread(), "attention.window")],
    ids=lambda x: getattr(x, "name", ""))
def test_the_account_catches_a_rule_that_did_not_look(text: str, wrong: Pass, unread: str) -> None:
    with pytest.raises(Internal, match=unread) as caught:
        run(parse(text), [wrong])
    assert caught.value.code == "P201"


def test_a_case_fails_when_text_code_or_reason_differ() -> None:
    here = uir.read_cases(Path(__file__).parent / "core.uir")
    becomes, declines, fails = (next(c for c in here if c.kind == k) for k in ("becomes", "declines", "fails"))
    for wrong in (replace(becomes, after=becomes.after.replace("1.0", "2.0")), replace(declines, arg="another reason"),
                  replace(fails, arg="P201"), replace(fails, before=becomes.after.replace("=model", "=core")),
                  replace(fails, arg="P202 another sentence")):
        with pytest.raises(AssertionError):
            uir.check(wrong)
