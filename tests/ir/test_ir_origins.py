"""Where things came from: known values, origins through arithmetic and passes, and how an error shows them."""
from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest

from uaii.ir import loc as L
from uaii.ir.account import Account
from uaii.ir.diag import Diagnostic, Internal, Malformed, Unsupported, Usage
from uaii.ir.known import known, origin, plain
from uaii.ir.ops import Add, Linear, RmsNorm, Scale
from uaii.ir.parse import parse
from uaii.ir.types import Tensor
from uaii.passes.base import Entry, run
from uaii.passes.fold_norm_offset import FoldNormOffset
from uaii.passes.fuse_skip_norm import FuseSkipNorm

WIDTH, HEADS = L.Key("config.json", "hidden_size", "64"), L.Key("config.json", "num_attention_heads", "4")
OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.pow]


@pytest.mark.parametrize("f", OPERATORS)
@pytest.mark.parametrize(("a", "b"), [(64, 4), (64, 0.5), (0.5, 64), (2.5, 1.5), (4, -1), (64, -0.5)])
def test_arithmetic_keeps_value_and_origins(f: Callable[[Any, Any], Any], a: Any, b: Any) -> None:
    if f is operator.floordiv and float in (type(a), type(b)):
        a, b = 64, 4  # whole division is of whole numbers here
    want = f(a, b)
    both, left, right = f(known(a, WIDTH), known(b, HEADS)), f(known(a, WIDTH), b), f(a, known(b, HEADS))
    assert both == left == right == want
    assert type(plain(both)) is type(plain(left)) is type(plain(right)) is type(want)
    assert origin(both) == L.All((WIDTH, HEADS)) and origin(left) == WIDTH
    assert origin(right) == (None if (type(a), type(b)) == (float, int) else HEADS)  # as the docstring of Known warns


def test_negation_keeps_the_origin() -> None:
    assert origin(-known(2, WIDTH)) == origin(-known(2.0, WIDTH)) == WIDTH and -known(2, WIDTH) == -2


def test_the_same_origin_twice_is_one() -> None:
    assert origin(known(8, WIDTH) * known(8, WIDTH)) == WIDTH


@pytest.mark.parametrize("value", [True, False, 3, 0, 2.5, "silu", ""])
def test_known_values_act_as_plain_ones(value: Any) -> None:
    k = known(value, WIDTH)
    assert k == value and hash(k) == hash(value) and bool(k) == bool(value) and repr(k) == repr(value)
    assert origin(k) == WIDTH and type(plain(k)) is type(value) and origin(plain(k)) is None


def test_what_carries_no_origin_stays_as_it_is() -> None:
    for value in (None, (1, 2), [1]):
        assert known(value, WIDTH) is value
    assert origin(known(3)) is None and type(known(3)) is int


def test_join_flattens_and_keeps_order() -> None:
    by = L.By("p", "", (WIDTH,))
    assert L.join(WIDTH, L.All((HEADS, WIDTH)), by) == L.All((WIDTH, HEADS, by))
    assert list(L.leaves(L.join(WIDTH, by, HEADS))) == [WIDTH, WIDTH, HEADS]


def test_site_and_passes_look_inside() -> None:
    site = L.Site("layers.0/attn/q", "families/llama.py", 40)
    deep = L.By("second", "", (L.By("first", "", (WIDTH, site)), L.All((HEADS, L.By("first", "", (HEADS,))))))
    assert L.site(deep) == "layers.0/attn/q" and L.site(WIDTH) == "" and L.site(None) == ""
    assert L.passes(deep) == ["first", "second"] and L.passes(site) == [] and L.passes(None) == []


def test_attributes_keep_their_key_through_passes() -> None:
    """eps and scale are copied, moved into other ops and fused; what they came from stays beside them."""
    eps, by = L.Key("config.json", "rms_norm_eps", "1e-06"), L.Key("config.json", "logit_scale", "2.0")
    graph = parse("""graph @g stage=ort dims(B, S) (
      %x: f32[B,S,8]
      %y: f32[B,S,8]
    ) {
      @w : f32[8] = "norm.weight":f32[8]
      %s = add %x, %y : f32[B,S,8]
      %n = rms_norm %s, @w {eps=1e-06, offset=1.0} : f32[B,S,8]
      %z = scale %n {by=2.0} : f32[B,S,8]
      return z=%z, s=%s
    }""")
    for op in graph.ops:
        locs = {"rms_norm": {"eps": eps}, "scale": {"by": by}}.get(op.name, {})
        object.__setattr__(op, "attr_locs", locs)
    graph = run(graph, [FoldNormOffset(), FuseSkipNorm()])
    fused, scaled = graph.ops
    assert fused.name == "skip_rms_norm" and fused.attr_locs == {"eps": eps} and scaled.attr_locs == {"by": by}
    assert L.passes(fused.loc) == ["fold-norm-offset", "fuse-skip-norm"]


def test_what_a_rule_makes_names_all_it_looked_through() -> None:
    graph = parse("""graph @g stage=ort dims(B, S) (
      %x: f32[B,S,8]
      %y: f32[B,S,8]
    ) {
      @w : f32[8] = "norm.weight":f32[8]
      %s = add %x, %y : f32[B,S,8]
      %n = rms_norm %s, @w {eps=1e-06} : f32[B,S,8]
      return n=%n
    } """)
    add, norm = graph.ops
    object.__setattr__(add, "loc", L.Site("layers.0", "f.py", 1))
    object.__setattr__(norm, "loc", L.Site("layers.0/norm", "f.py", 2))
    journal: list[Entry] = []
    seen: list[str] = []
    (fused,) = run(graph, [FuseSkipNorm()], journal, lambda name, g: seen.append(f"{name} {len(g.ops)}")).ops
    assert fused.loc == L.By("fuse-skip-norm", FuseSkipNorm.why, (norm.loc, add.loc))
    assert journal == [Entry("fuse-skip-norm", "layers.0/norm", FuseSkipNorm.why, applied=True)]
    assert seen == ["fuse-skip-norm 1"]


def test_the_account_lists_what_was_not_read() -> None:
    graph = parse("""graph @g stage=model dims(B, S) (
      %x: f32[B,S,8]
    ) {
      @w : f32[8] = "w":f32[8]
      @m : f32[4,8] = "m":f32[4,8]
      %n = rms_norm %x, @w {eps=1e-06, offset=1.0} : f32[B,S,8]
      %p = linear %n, @m : f32[B,S,4]
      return p=%p
    }""")
    norm, product = graph.ops
    assert isinstance(norm, RmsNorm) and isinstance(product, Linear)
    account = Account()
    watched, other = account.watch(norm), account.watch(product)
    assert account.unread() == [(norm, "x"), (norm, "weight"), (norm, "eps"), (norm, "offset"),
                                (product, "x"), (product, "weight")]  # an absent bias says nothing
    assert watched.eps == 1e-06 and watched.x is graph.inputs[0] and other.bias is None
    assert account.unread() == [(norm, "weight"), (norm, "offset"), (product, "x"), (product, "weight")]
    assert watched.weight and watched.offset and other.x and other.weight
    assert account.unread() == []
    at_default = RmsNorm(norm.x, norm.weight, eps=1e-6)
    account.watch(at_default)
    assert "offset" not in [name for _, name in account.unread()]


def test_watched_attributes_bring_their_origin() -> None:
    graph = parse("graph @g stage=model dims(B) (%x: f32[B,8]) { %y = scale %x {by=2.0} : f32[B,8] return %y }")
    (op,) = graph.ops
    object.__setattr__(op, "attr_locs", {"by": WIDTH})
    watched: Any = Account().watch(op)
    assert origin(watched.by) == WIDTH and origin(watched.by * 3) == WIDTH


def test_values_that_no_op_made_have_no_producer() -> None:
    graph = parse("graph @g stage=model dims(B) (%x: f32[B,8]) { %y = add %x, %x : f32[B,8] return %y }")
    (op,) = graph.ops
    assert isinstance(op, Add) and op.a.op is None and op.out.op is op
    with pytest.raises(ValueError):
        _ = parse("graph @g stage=ort dims(B) (%x: f32[B,8]) { %a, %b = halves %x : f32[B,4], f32[B,4] return %a }").ops[0].out
    assert Scale(op.out, by=known(2.0, WIDTH)).attr_locs == {"by": WIDTH}
    assert op.out.type == Tensor("f32", ("B", 8))


@pytest.mark.parametrize(("kind", "exit_code"), [(Internal, 1), (Usage, 2), (Unsupported, 3), (Malformed, 4)])
def test_diagnostics_say_where_why_and_what_to_do(kind: type[Diagnostic], exit_code: int) -> None:
    keys = tuple(L.Key("config.json", f"k{i}", str(i)) for i in range(10))
    error = kind("Z999", "something is wrong", L.All((*keys, keys[0])), why="it matters", hint="do this", notes=["a", "b"])
    lines = str(error).splitlines()
    assert error.exit_code == exit_code and lines[0] == "error[Z999]: something is wrong"
    assert lines[1] == "  --> config.json: k0 = 0" and lines[9] == "  --> ... and 2 more"
    assert lines[10:] == ["   |  a", "   |  b", "   = why: it matters", "   = help: do this"]
    assert error.record() == {"code": "Z999", "says": "something is wrong", "why": "it matters", "hint": "do this",
                              "where": [L.show_leaf(k) for k in keys], "notes": ["a", "b"]}
    assert str(kind("Z999", "short")) == "error[Z999]: short" and kind("Z999", "short").record()["where"] == []


def test_every_leaf_has_a_line() -> None:
    assert [L.show_leaf(x) for x in (L.Stored("m.gguf", "w"), L.Site("", "f.py", 3), L.Site("layers.0", "f.py", 3),
                                     L.File("f"), L.File("f", "byte 4"))] == [
        "m.gguf: tensor w", "f.py:3 at the model", "f.py:3 at layers.0", "f", "f: byte 4"]
