"""The printer: one canonical text for a graph. `parse(show(g))` is `g`, locations included when asked for."""
from __future__ import annotations

import json
from typing import Any

from uaii.ir import loc as L
from uaii.ir.core import Graph, Op, Value, Weight
from uaii.ir.ops import RopeScaling


def show(graph: Graph, locs: bool = False) -> str:
    """Header and inputs, weights with their recipes, ops, outputs; with `locs`, the table of origins after it."""
    names, table = name_values(graph), _LocTable()

    def at(thing: Op | Weight) -> str:
        if not locs or thing.loc is None:
            return ""
        mark = f"  {table.mark(thing.loc)}"
        if isinstance(thing, Op) and thing.attr_locs:
            mark += "(" + ", ".join(f"{k}={table.mark(v)}" for k, v in thing.attr_locs.items()) + ")"
        return mark

    dims = ", ".join(f"{d}={m}" if m else d for d, m in graph.dims.items())
    out = [f"graph @{graph.name} stage={graph.stage} dims({dims}) ("]
    out += [f"  {names[v]}: {v.type}" + (f" = {v.default}" if v.default is not None else "") for v in graph.inputs]
    out += [") {"]
    out += [f"  {names[w]} : {w.type} = {w.recipe}{at(w)}" for w in graph.weights.values()]
    for op in graph.ops:
        lhs = ", ".join(names[r] for r in op.results)
        args = ", ".join(f"{n}={names[v]}" if n in optional(type(op)) else names[v]
                         for n in op.operand_names if (v := getattr(op, n)) is not None)
        attrs = ", ".join(f"{k}={show_attr(v)}" for k, v in op.attrs.items() if v != op.defaults[k])
        types = ", ".join(str(r.type) for r in op.results)
        out.append(f"  {lhs} = {op.name} {args}" + (f" {{{attrs}}}" if attrs else "") + f" : {types}{at(op)}")
    labels = graph.output_names or ["" for _ in graph.outputs]
    out += ["  return " + ", ".join(f"{n}={names[v]}" if n else names[v]
                                    for n, v in zip(labels, graph.outputs, strict=True)), "}"]
    return "\n".join(out + table.lines()) + "\n"


def optional(kind: type[Op]) -> tuple[str, ...]:
    """Operands that may be absent; they are printed with their names."""
    hints = kind.__annotations__
    return tuple(n for n in kind.operand_names if "None" in str(hints[n]))


def name_values(graph: Graph) -> dict[Value, str]:
    """Stable, unique names: the value's own where it is free, else with a number."""
    names: dict[Value, str] = {w: f"@{k}" for k, w in graph.weights.items()}
    values = [*graph.inputs, *(r for op in graph.ops for r in op.results)]
    wanted = {v.name for v in values}
    used: set[str] = set()
    counts: dict[str, int] = {}
    for v in values:
        hint = name = v.name or "v"
        while name in used or (name != v.name and name in wanted):
            counts[hint] = counts.get(hint, 0) + 1
            name = f"{hint}_{counts[hint]}"
        used.add(name)
        names[v] = f"%{name}"
    return names


def show_attr(v: Any) -> str:
    """An attribute's text: words bare, numbers as Python prints them."""
    if isinstance(v, RopeScaling):
        return f"{v.kind}({', '.join(f'{k}={show_attr(x)}' for k, x in v.params)})"
    if isinstance(v, tuple):
        return f"[{', '.join(show_attr(x) for x in v)}]"
    return v if isinstance(v, str) else repr(v)


class _LocTable:
    """Numbers origins as they are met, parts before wholes, each once."""

    def __init__(self) -> None:
        self._marks: dict[L.Loc, str] = {}
        self._lines: list[str] = []

    def mark(self, loc: L.Loc) -> str:
        if loc in self._marks:
            return self._marks[loc]
        text = self._text(loc)
        self._marks[loc] = f"!{len(self._marks)}"
        self._lines.append(f"{self._marks[loc]} = {text}")
        return self._marks[loc]

    def _text(self, loc: L.Loc) -> str:
        def quote(*words: str | int) -> str:
            return ", ".join(json.dumps(w, ensure_ascii=False) for w in words)

        match loc:
            case L.Key(file, path, value):
                return f"key({quote(file, path, value)})"
            case L.Stored(file, name):
                return f"tensor({quote(file, name)})"
            case L.Site(path, file, line):
                return f"site({quote(path, file, line)})"
            case L.File(file, at):
                return f"file({quote(file, at)})"
            case L.By(name, why, of):
                return f"by({quote(name, why)}, [{', '.join(self.mark(x) for x in of)}])"
            case L.All(of):
                return f"all([{', '.join(self.mark(x) for x in of)}])"

    def lines(self) -> list[str]:
        return self._lines
