"""What a graph must be at every moment: each rule of the verifier is broken once."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from uaii.ir import loc as L
from uaii.ir.core import OPS, Builder, Graph, Input, Op, Value, Weight
from uaii.ir.diag import Internal
from uaii.ir.ops import Add, Attention, Halves, Linear, MatMulNBits, RmsNorm, Rope, SplitHeads
from uaii.ir.parse import parse
from uaii.ir.recipe import make
from uaii.ir.types import Tensor

TEXT = """graph @g stage=model dims(B, S) (
  %x: f32[B,S,8]
  %y: f32[B,S,8]
) {
  @w : f32[8] = cast("norm.weight":bf16[8], f32)
  %s = add %x, %y : f32[B,S,8]
  %n = rms_norm %s, @w {eps=1e-06} : f32[B,S,8]
  return n=%n, s=%s
}
"""


def swap_ops(g: Graph) -> None:
    g.ops.reverse()


def foreign_operand(g: Graph) -> None:
    with Builder(g).at(L.File("here")):
        g.outputs[0] = Add(Value(Tensor("f32", ("B", "S", 8)), "ghost"), g.inputs[0]).out


def unlisted_weight(g: Graph) -> None:
    g.weights.clear()


def stale_result(g: Graph) -> None:
    g.inputs[0].type = g.inputs[1].type = Tensor("f32", ("B", 1, 8))


def undefined_output(g: Graph) -> None:
    g.outputs.append(Value(Tensor("f32", ("B",)), "ghost"))


def other_recipe(g: Graph) -> None:
    g.weights["w"].recipe = make("load", "norm.weight", Tensor("bf16", (8,)))


def weight_from_nowhere(g: Graph) -> None:
    g.weights["w"].loc = None


def op_from_nowhere(g: Graph) -> None:
    object.__setattr__(g.ops[0], "loc", None)


def later_op(g: Graph) -> None:
    with Builder(g).at(L.File("here")):
        Halves(g.inputs[0])


def undeclared_dim(g: Graph) -> None:
    del g.dims["S"]


@pytest.mark.parametrize(("spoil", "code", "says"), [
    (swap_ops, "V001", "used before it is defined"), (foreign_operand, "V001", "ghost"),
    (unlisted_weight, "V001", "operand w is used before"), (stale_result, "V001", "result types are stale"),
    (undefined_output, "V002", "output ghost is not defined in @g"),
    (other_recipe, "V003", "@w is f32[8], its recipe yields bf16[8]"),
    (weight_from_nowhere, "V004", "@w has no origin"), (op_from_nowhere, "V004", "add has no origin"),
    (later_op, "V005", "halves is not an operation of the model stage"),
    (undeclared_dim, "V006", "dimension S is not declared"),
])
def test_a_broken_graph_is_refused(spoil: Callable[[Graph], None], code: str, says: str) -> None:
    g = parse(TEXT)
    g.verify()
    spoil(g)
    with pytest.raises(Internal) as caught:
        g.verify()
    assert caught.value.code == code and says in caught.value.says
    assert caught.value.exit_code == 1


def value(text: str) -> Value:
    elem, _, shape = text.removesuffix("]").partition("[")
    return Value(Tensor(elem, tuple(int(d) if d.isdigit() else d for d in shape.split(",") if d)), "v")


def build(kind: type[Op], *operands: str | None, **attrs: object) -> Op:
    return kind(*(value(o) if o else None for o in operands), **attrs)


CACHE = ("f32[B,2,P,16]", "f32[B,2,P,16]", "i64[B,T]")


@pytest.mark.parametrize(("kind", "operands", "attrs", "says"), [
    (Add, ("f32[B,8]", "f32[B,9]"), {}, "f32[B,8] + f32[B,9]"),
    (Add, ("f32[B,8]", "f16[B,8]"), {}, "f32[B,8] + f16[B,8]"),
    (RmsNorm, ("f32[B,S,8]", "f32[9]"), {"eps": 1e-6}, "does not span the last axis"),
    (RmsNorm, ("i64[B,S,8]", "f32[8]"), {"eps": 1e-6}, "x must be float"),
    (Linear, ("f32[B,S,8]", "f32[4,9]", None), {}, "does not meet weight"),
    (Linear, ("f32[B,S,8]", "u8[4,8]", None), {}, "weight is u8[4,8]"),
    (Linear, ("f32[B,S,8]", "f32[4,8]", "f32[8]"), {}, "does not span 4 outputs"),
    (SplitHeads, ("f32[B,S,8]",), {"n": 3}, "8 does not split into 3 heads"),
    (SplitHeads, ("f32[B,S,8]",), {"n": 0}, "does not apply"),
    (Rope, ("f32[B,S,2,8]", "f32[B,S]", None, None), {"theta": 1e4, "dim": 8}, "positions must be integers"),
    (Rope, ("f32[B,S,2,8]", "i64[B,S]", None, None), {"dim": 8}, "theta or freqs, not both"),
    (Rope, ("f32[B,S,2,8]", "i64[B,S]", "f32[4]", None), {"theta": 1e4, "dim": 8}, "theta or freqs, not both"),
    (Rope, ("f32[B,S,2,8]", "i64[B,S]", None, None), {"theta": 1e4, "dim": 10}, "cannot rotate 10 of 8"),
    (Rope, ("f32[B,S,2,8]", "i64[B,S]", None, None), {"theta": 1e4, "dim": 3}, "cannot rotate 3 of 8"),
    (Rope, ("f32[B,S,2,8]", "i64[B,S]", "f32[8]", None), {"dim": 8}, "4 frequencies are needed"),
    (Rope, ("f32[B,S,2,8]", "i64[B,S]", None, "f32[3]"), {"theta": 1e4, "dim": 8}, "4 frequencies are needed"),
    (Attention, ("f32[B,S,3,16]", "f32[B,S,2,16]", "f32[B,S,2,16]", *CACHE), {"scale": 1.0}, "3 query heads over 2"),
    (Attention, ("f32[B,S,4,16]", "f32[B,S,2,16]", "f32[B,S,2,8]", *CACHE), {"scale": 1.0}, "k f32[B,S,2,16], v f32"),
    (Attention, ("f32[B,S,4,8]", "f32[B,S,2,8]", "f32[B,S,2,8]", *CACHE), {"scale": 1.0}, "past keys are"),
    (Attention, ("f32[B,S,4,16]", "f32[B,S,2,16]", "f32[B,S,2,16]", *CACHE), {"scale": 1.0, "window": -1}, "not negative"),
    (MatMulNBits, ("f32[B,S,64]", "u8[4,2,32]", "f32[4,2]", None), {}, "is not 4 bits x 32"),
    (MatMulNBits, ("f32[B,S,96]", "u8[4,2,16]", "f32[4,2]", None), {}, "meets 2 blocks"),
    (MatMulNBits, ("f32[B,S,64]", "u8[4,2,16]", "f32[4,3]", None), {}, "scales are f32[4,3]"),
    (OPS["softcap"], ("f32[B,8]",), {"cap": 0.0}, "cap 0.0 is not positive"),
    (OPS["clamp"], ("f32[B,8]",), {"limit": -1.0}, "limit -1.0 is not positive"),
    (OPS["row_gate"], ("f32[B,S,8]", "f32[B,S,8]"), {}, "f32[B,S,8] gates f32[B,S,8]"),
    (OPS["activation"], ("f32[B,8]",), {"act": "swish"}, "unknown activation 'swish'"),
    (OPS["gated"], ("f32[B,8]", "f32[B,9]"), {"act": "silu"}, "gates"),
    (OPS["layer_norm"], ("f32[B,8]", "f32[8]", "f32[7]"), {"eps": 1e-6}, "do not span"),
    (OPS["layer_norm"], ("f32[B,8]", None, "f32[8]"), {"eps": 1e-6, "offset": 1.0}, "an offset needs a weight"),
    (OPS["embedding"], ("f32[B,S]", "f32[9,8]"), {}, "ids must be integers"),
    (OPS["embedding"], ("i64[B,S]", "f32[9]"), {}, "table is f32[9]"),
    (OPS["last_positions"], ("f32[B,S,8]", "i64[1]"), {}, "keep is i64[1]"),
    (OPS["positions"], ("f32[B,T]", "i64[B,S]"), {}, "mask is f32[B,T]"),
    (OPS["halves"], ("f32[B,7]",), {}, "7 has no halves"),
    (OPS["block_sum"], ("f32[B,S,48]",), {"block": 32}, "48 is not a multiple of 32"),
    (OPS["embedding_nbits"], ("i64[B,S]", "u8[9,64]", "f32[9,3]"), {}, "scales are f32[9,3]"),
    (OPS["dynamic_freqs"], ("i64[B,S]",), {"theta": 1e4, "dim": 2, "factor": 2.0, "max_positions": 8}, "more than two"),
    (OPS["length_freqs"], ("i64[B,S]", "i64[]", "f32[3,8]"), {"limit": 8}, "table is f32[3,8]"),
    (OPS["length_freqs"], ("i64[B,S]", "i64[B]", "f32[2,8]"), {"limit": 8}, "length is i64[B]"),
    (Rope, ("f32[B,S,2,8]", "i64[B,S]", "f32[S,4]", None), {"dim": 8}, "4 frequencies are needed"),
    (Rope, ("f32[B,S,2,8]", "i64[B,S]", None, "f32[B,4]"), {"theta": 1e4, "dim": 8}, "4 frequencies are needed"),
    (OPS["rotary"], ("f32[B,S,10]", "f32[B,S,4]", "f32[B,S,4]"), {"heads": 3}, "has no 3 heads"),
    (OPS["merge_heads"], ("f32[B,S,8]",), {}, "does not apply"),
])
def test_ops_refuse_what_does_not_fit(kind: type[Op], operands: tuple[str | None, ...], attrs: dict[str, object],
                                      says: str) -> None:
    with pytest.raises(Internal) as caught:
        build(kind, *operands, **attrs)
    assert caught.value.code == "V001" and says in str(caught.value)


@pytest.mark.parametrize(("changed", "says"), [
    ({"q": "f32[B,S,48]"}, "q is f32[B,S,48]"), ({"v": None}, "k and v go together"),
    ({"k": None, "v": None}, "q is f32[B,S,64]"), ({"cos": "f32[9,8]"}, "cos and sin go together"),
    ({"q": "i64[B,S,64]"}, "q is i64"),
])
def test_the_attention_kernel_refuses_what_does_not_fit(changed: dict[str, str | None], says: str) -> None:
    fits: dict[str, str | None] = {"q": "f32[B,S,64]", "k": "f32[B,S,32]", "v": "f32[B,S,32]", "past_k": CACHE[0],
                                   "past_v": CACHE[1], "lengths": "i32[B]", "total": "i32[]", "cos": None, "sin": None}
    build(OPS["gqa"], *fits.values(), heads=4, kv_heads=2, scale=1.0)
    with pytest.raises(Internal) as caught:
        build(OPS["gqa"], *(fits | changed).values(), heads=4, kv_heads=2, scale=1.0)
    assert caught.value.code == "V001" and says in caught.value.says


def test_an_op_is_declared_once() -> None:
    with pytest.raises(TypeError, match="declared twice"):
        type("Again", (Op,), {"__annotations__": {"x": Value}}, name="add")
    assert OPS["add"] is Add


def test_ops_are_frozen_and_compared_by_identity() -> None:
    g = parse(TEXT)
    with pytest.raises(AttributeError):
        g.ops[0].a = g.inputs[1]
    assert g.ops[0] != parse(TEXT).ops[0]
    assert isinstance(g.weights["w"], Weight) and isinstance(g.inputs[0], Input)
