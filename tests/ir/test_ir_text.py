"""The text form: what it prints it reads, and what it cannot read it blames on the right line."""
from __future__ import annotations

import random
import re

import pytest
import uir

from uaii.ir import loc as L
from uaii.ir.core import OPS, Builder, Graph, Input, Op, Weight
from uaii.ir.diag import Diagnostic, Malformed
from uaii.ir.ops import Add, RmsNorm, Rope, RopeScaling, Scale
from uaii.ir.parse import parse
from uaii.ir.recipe import make
from uaii.ir.stages import Stage
from uaii.ir.text import show
from uaii.ir.types import Tensor

GOOD = """graph @g stage=model dims(B, S, P, T=P+S) (
  %x: f32[B,S,8]
  %keep: i64[] = 0
) {
  @w : bf16[8] = "norm.weight":bf16[8]
  @table : f32[8] = add(cast(concat(rows("t":f16[9], 0, 4), "u":f16[4]), f32), -1e-06)
  %n = rms_norm %x, @w {eps=1e-06, offset=1.0} : f32[B,S,8]
  %m = rms_norm %n, @table {eps=1e-05} : f32[B,S,8]
  return out=%m, keep=%keep
}
"""


def graph() -> Graph:
    return Graph("g", Stage.MODEL, [Input(Tensor("f32", ("B", "S", 8)), "x")], {}, {"B": "", "S": ""})


def test_text_is_what_it_was() -> None:
    assert show(parse(GOOD)) == GOOD


def test_layout_does_not_matter() -> None:
    assert show(parse(" ".join(GOOD.split()))) == GOOD
    assert show(parse(GOOD.replace(",", " , ").replace("{", "\n{\n"))) == GOOD


def test_values_of_one_name_are_told_apart() -> None:
    g = graph()
    with Builder(g).at(L.File("here")):
        for name in ("x", "x", "x_1", "", ""):
            op = Add(g.inputs[0], g.inputs[0])
            op.results[0].name = name
            g.outputs.append(op.out)
    names = re.findall(r"^  (%\S+) = add", show(g), re.M)
    assert len(set(names)) == 5 and "%x" not in names and "%x_1" in names
    uir.round_trips(g)


@pytest.mark.parametrize("name", ['a "quoted" name', "back\\slash", "new\nline", "\u2028", "ключ", "", "tab\t", "//", "{}"])
def test_any_tensor_name_is_read_back(name: str) -> None:
    g = graph()
    g.weights["w"] = Weight(Tensor("f32", (8,)), "w", recipe=make("load", name, Tensor("f32", (8,))), loc=L.Stored(name, name))
    with Builder(g).at(L.Key(name, name, name)):
        g.outputs.append(RmsNorm(g.inputs[0], g.weights["w"], eps=1e-6).out)
    back = parse(show(g, locs=True))
    assert back.weights["w"].recipe == g.weights["w"].recipe
    assert back.ops[0].loc == L.Key(name, name, name)
    uir.round_trips(g)


@pytest.mark.parametrize("value", [0.1, 1e-300, -2.5, 1e22, 3.0, 5e-324, 123456789.123456789])
def test_numbers_are_read_back_bit_for_bit(value: float) -> None:
    g = graph()
    with Builder(g).at(L.File("here")):
        g.outputs.append(Scale(g.inputs[0], by=value).out)
    (op,) = parse(show(g)).ops
    assert op.by == value and type(op.by) is float


def test_records_lists_and_flags_are_read_back() -> None:
    scaling = RopeScaling("yarn", (("factor", 4.0), ("truncate", False), ("short", (1.0, 2.5)), ("original", 64)))
    g = Graph("g", Stage.MODEL, [Input(Tensor("f32", ("B", "S", 2, 8)), "x"), Input(Tensor("i64", ("B", "S")), "p")], {},
              {"B": "", "S": ""})
    with Builder(g).at(L.File("here")):
        g.outputs.append(Rope(*g.inputs, theta=1e4, dim=8, interleaved=True, scaling=scaling).out)
    (op,) = parse(show(g)).ops
    assert isinstance(op, Rope) and op.scaling == scaling and op.interleaved is True


def test_every_kind_of_origin_is_read_back() -> None:
    g = graph()
    loc = L.By("p", "why, \"so\"", (L.All((L.Key("f", "a.b", '{"x": 1}'), L.Stored("f", "t"))),
                                    L.By("q", "", (L.Site("layers.0/attn", "families/x.py", 12), L.File("f", "line 3")))))
    with Builder(g).at(loc):
        op = Scale(g.inputs[0], by=2.0)
    object.__setattr__(op, "attr_locs", {"by": L.Key("f", "by", "2")})
    g.outputs.append(op.out)
    (back,) = parse(show(g, locs=True)).ops
    assert back.loc == loc and back.attr_locs == op.attr_locs
    assert show(g, locs=False).count("!") == 0


def line_of(error: Malformed) -> int:
    assert isinstance(error.where, L.File)
    return int(error.where.at.removeprefix("line "))


@pytest.mark.parametrize(("old", "new", "line", "says"), [
    ("graph @g", "grph @g", 1, "expected 'graph', found 'grph'"),
    ("stage=model", "stage=middle", 1, "middle"),
    ("f32[B,S,8]\n  %keep", "f33[B,S,8]\n  %keep", 2, "unknown element type 'f33'"),
    ("= 0\n", "= zero\n", 3, "zero"),
    ('"norm.weight":bf16[8]', 'fetch("norm.weight":bf16[8])', 5, "unknown recipe 'fetch'"),
    ('"norm.weight":bf16[8]', '"norm.weight"', 6, "expected ':'"),
    ("cast(concat", "cast(5, concat", 6, "does not make sense here"),
    ("%n = rms_norm", "%n = rms_nrm", 7, "unknown operation 'rms_nrm'"),
    ("%x, @w {eps=1e-06,", "%x, @v {eps=1e-06,", 7, "@v is not defined here"),
    ("%x, @w {eps=1e-06,", "%x, @w, @w {eps=1e-06,", 7, "takes no operand more"),
    ("%x, @w {eps=1e-06,", "%x {eps=1e-06,", 7, "does not make sense here"),
    ("eps=1e-06, off", "epsilon=1e-06, off", 7, "rms_norm has no epsilon"),
    ("eps=1e-06, ", "", 7, "eps"),
    ("offset=1.0} : f32[B,S,8]", "offset=1.0} : f32[B,S,9]", 7, "rms_norm yields f32[B,S,8], the text says f32[B,S,9]"),
    ("  %n = rms", "  %n, %o = rms", 7, "does not make sense here"),
    ("%m = rms_norm %n", "%m = rms_norm %m", 8, "%m is not defined here"),
    ("out=%m", "out=%o", 9, "%o is not defined here"),
    ("keep=%keep\n}", "keep=%keep\n", 9, "the text ends too early"),
    ("\n}\n", "\n}\nmore\n", 11, "unexpected 'more'"),
    ("\n}\n", "\n}\n!0 = elsewhere()\n", 11, "elsewhere"),
])
def test_a_mistake_is_blamed_on_its_line(old: str, new: str, line: int, says: str) -> None:
    assert GOOD.count(old) >= 1
    with pytest.raises(Malformed) as caught:
        parse(GOOD.replace(old, new, 1))
    error = caught.value
    assert error.code == "X001" and says in error.says
    assert line_of(error) == line
    assert error.notes == [GOOD.replace(old, new, 1).split("\n")[line - 1].strip()]


@pytest.mark.parametrize("text", ["", " \n", "graph", "%", "\"", "graph @g stage=model dims(", "!0", "}" * 40])
def test_fragments_are_refused(text: str) -> None:
    with pytest.raises(Malformed) as caught:
        parse(text)
    assert caught.value.code == "X001"


def test_mutated_text_is_read_or_refused() -> None:
    """Tokens dropped, doubled, exchanged and replaced: a Diagnostic or a graph, never another exception."""
    rng = random.Random(0)
    tokens = re.findall(r'"[^"]*"|[\w.%@!=+-]+|\S', show(parse(GOOD), locs=True))
    strange = ["{", "}", "(", "[", ",", "=", "%x", "@w", "-1", "0", "1e999", "None", '""', "q4_0", "f32", "!0", "gqa", "rows"]
    assert show(parse(" ".join(tokens))) == GOOD
    refused = 0
    for _ in range(1500):
        t = list(tokens)
        for _ in range(rng.randint(1, 2)):
            i, j = rng.randrange(len(t)), rng.randrange(len(t))
            match rng.randrange(4):
                case 0:
                    del t[i]
                case 1:
                    t.insert(i, t[j])
                case 2:
                    t[i], t[j] = t[j], t[i]
                case _:
                    t[i] = rng.choice(strange)
        try:
            read = parse(" ".join(t))
            read.verify()
        except Diagnostic:
            refused += 1
        else:
            uir.round_trips(read)
    assert 750 < refused < 1500


def test_every_operation_prints_its_optional_operands_by_name() -> None:
    """The text form tells operands apart by `None` in their annotation: an optional one must come without a position."""
    from uaii.ir.text import optional
    for kind in OPS.values():
        declared = {n for n in kind.operand_names if kind.defaults.get(n, ...) is None}
        assert declared <= set(optional(kind)), kind.name
    assert issubclass(OPS["gqa"], Op) and optional(OPS["gqa"]) == ("k", "v", "cos", "sin", "sinks", "positions")
