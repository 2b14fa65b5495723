"""The parser of the text form. Every mistake is an X001 with the line it stands on."""
from __future__ import annotations

import json
from typing import Any

from uaii.ir import loc as L
from uaii.ir.core import OPS, Builder, Graph, Input, Op, Value, Weight
from uaii.ir.ops import RopeScaling
from uaii.ir.reader import Reader
from uaii.ir.recipe import RECIPES, Recipe, make
from uaii.ir.stages import Stage
from uaii.ir.text import optional
from uaii.ir.types import ELEMS

RECORDS = {"scaling": RopeScaling}
LOCS = {"key": L.Key, "tensor": L.Stored, "site": L.Site, "file": L.File, "by": L.By, "all": L.All}


def parse(text: str) -> Graph:
    """The graph a text states. Raises Malformed X001 on grammar, Internal V0xx on types."""
    parser = _Parser(text)
    try:
        return parser.graph()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise parser.fail(f"this does not make sense here: {error}") from error


class _Parser(Reader):
    """The grammar, from the top down."""

    def attrs(self, end: str) -> dict[str, Any]:
        out: dict[str, Any] = {}
        while not self.take(end):
            key = self.word()
            self.want("=")
            if key in RECORDS and self.peek() != "None":
                kind = self.next()
                self.want("(")
                out[key] = RECORDS[key](kind, tuple(self.attrs(")").items()))
            else:
                out[key] = self.literal()
            self.take(",")
        return out

    def recipe(self) -> Recipe:
        head = self.next()
        if head[0] == '"':
            self.want(":")
            return make("load", json.loads(head), self.type())
        if head not in RECIPES:
            raise self.fail(f"unknown recipe {head!r}")
        args: list[Any] = []
        self.want("(")
        while not self.take(")"):
            ahead = self.tokens[self.i + 1][0] if self.i + 1 < len(self.tokens) else ""
            if self.peek()[:1] == '"' or ahead == "(":
                args.append(self.recipe())
            elif self.peek() in ELEMS and ahead == "[":
                args.append(self.type())
            else:
                args.append(self.literal())
            self.take(",")
        return make(head, *args)

    def graph(self) -> Graph:
        graph = self.header()
        values: dict[str, Value] = {}
        for v in graph.inputs:
            self.define(f"%{v.name}", v, values)
        marks: list[tuple[Op | Weight, str, dict[str, str]]] = []
        with Builder(graph).at(L.File("<ir>")):
            while not self.take("return"):
                thing = self.weight(graph, values) if self.peek().startswith("@") else self.op(values)
                marks.append((thing, *self.marks()))
        while not self.take("}"):
            if not self.peek().startswith(("%", "@")):
                graph.output_names.append(self.word())
                self.want("=")
            graph.outputs.append(self.value(self.next(), values))
            self.take(",")
        if graph.output_names and len(graph.output_names) != len(graph.outputs):
            raise self.fail("either every output has a label or none")
        table = self.locs()
        for thing, mark, attrs in marks:
            if mark:
                object.__setattr__(thing, "loc", table[mark])
                if isinstance(thing, Op):
                    object.__setattr__(thing, "attr_locs", {k: table[m] for k, m in attrs.items()})
        return graph

    def header(self) -> Graph:
        self.want("graph")
        name = self.word("@")
        self.want("stage")
        self.want("=")
        stage = Stage(self.next())
        dims: dict[str, str] = {}
        self.want("dims")
        self.want("(")
        while not self.take(")"):
            dim = self.word()
            dims[dim] = self.word() if self.take("=") else ""
            self.take(",")
        graph = Graph(name, stage, [], {}, dims)
        self.want("(")
        while not self.take(")"):
            value = self.word("%")
            self.want(":")
            made = Input(self.type(), value)
            if self.take("="):
                made.default = int(self.next())
            graph.inputs.append(made)
            self.take(",")
        self.want("{")
        return graph

    def value(self, name: str, values: dict[str, Value]) -> Value:
        if name not in values:
            raise self.fail(f"{name} is not defined here")
        return values[name]

    def define(self, name: str, value: Value, values: dict[str, Value]) -> None:
        if name in values:
            raise self.fail(f"{name} is defined twice")
        values[name] = value

    def weight(self, graph: Graph, values: dict[str, Value]) -> Weight:
        name = self.word("@")
        self.want(":")
        made = Weight(self.type(), name)
        self.want("=")
        made.recipe, made.loc = self.recipe(), L.File("<ir>")
        self.define(f"@{name}", made, values)
        graph.weights[name] = made
        return made

    def op(self, values: dict[str, Value]) -> Op:
        lhs = [self.word("%")]
        while self.take(","):
            lhs.append(self.word("%"))
        self.want("=")
        name = self.next()
        if name not in OPS:
            raise self.fail(f"unknown operation {name!r}")
        cls, fields = OPS[name], dict[str, Any]()
        positional = iter(n for n in cls.operand_names if n not in optional(cls))
        while self.peek() not in ("{", ":"):
            tok = self.next()
            if self.take("="):
                fields[tok] = self.value(self.next(), values)
            else:
                slot = next(positional, None)
                if slot is None:
                    raise self.fail(f"{name} takes no operand more than it has")
                fields[slot] = self.value(tok, values)
            self.take(",")
        fields |= self.attrs("}") if self.take("{") else {}
        if odd := set(fields) - {*cls.operand_names, *cls.attr_names}:
            raise self.fail(f"{name} has no {', '.join(sorted(odd))}")
        fields = dict.fromkeys(cls.operand_names) | fields
        self.want(":")
        op = cls(**fields)
        for v, r in zip(lhs, op.results, strict=True):
            said = self.type()
            if said != r.type:
                raise self.fail(f"{name} yields {r.type}, the text says {said}")
            r.name = v
            self.define(f"%{v}", r, values)
            self.take(",")
        return op

    def marks(self) -> tuple[str, dict[str, str]]:
        if self.peek()[:1] != "!":
            return "", {}
        mark, attrs = self.next(), dict[str, str]()
        if self.take("("):
            while not self.take(")"):
                key = self.next()
                self.want("=")
                attrs[key] = self.next()
                self.take(",")
        return mark, attrs

    def locs(self) -> dict[str, L.Loc]:
        table: dict[str, L.Loc] = {}
        while self.peek().startswith("!"):
            mark = self.next()
            self.want("=")
            kind, args = self.next(), list[Any]()
            self.want("(")
            while not self.take(")"):
                args.append(self.loc_arg(table))
                self.take(",")
            made: L.Loc = LOCS[kind](*args)
            table[mark] = made
        if self.peek():
            raise self.fail(f"unexpected {self.peek()!r}", 1)
        return table

    def loc_arg(self, table: dict[str, L.Loc]) -> Any:
        if not self.take("["):
            return self.literal()
        of: list[L.Loc] = []
        while not self.take("]"):
            of.append(table[self.next()])
            self.take(",")
        return tuple(of)
