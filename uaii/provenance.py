"""Where one thing of a compiled model came from: an op's value, an ONNX node, a weight, a stored tensor, an input."""
from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from uaii.explanation import Explanation, near
from uaii.ir.core import Graph
from uaii.ir.diag import Diagnostic, Usage
from uaii.ir.text import name_values, show
from uaii.record import origin, weight

Found = dict[str, Any]


def provenance(e: Explanation, name: str) -> Found:
    """What is known of the name: `%value`, `@weight`, an ONNX node or initializer, or a stored tensor.

    A name without a sign is a value first, then a weight. Raises Usage U041, with names that are like it.
    """
    found = _in_record(e, name) or _in_graphs(e, name)
    if found is None:
        raise Usage("U041", f"nothing here is called {name}" + near(name, _names(e)),
                    hint="give a value (%0.attn.qkv), a weight (@0.attn_norm), an ONNX node or a stored tensor")
    return found


def _in_record(e: Explanation, name: str) -> Found | None:
    r, bare = e.record, re.sub(r"^(weights/|[%@])", "", name)
    if name in r["origins"]:
        return _op(e, r["origins"][name], name)
    for o in r["origins"].values():
        if not name.startswith(("@", "weights/")) and f"%{bare}" in map(_value, o["results"]):
            return _op(e, o, f"%{bare}")
    if not name.startswith("%") and bare in r["weights"]:
        return _weight(e, bare, r["weights"][bare])
    tensor = next((t for t in r["tensors"] if t["tensor"] == name), None)
    return {"kind": "tensor", "name": name, **tensor} if tensor else None


def _in_graphs(e: Explanation, name: str) -> Found | None:
    """The last graph that had the name; an artifact's are made again when its source is there."""
    try:
        graphs = e.graphs()
    except Diagnostic:
        return None
    for i in range(len(graphs) - 1, -1, -1):
        found = _in_graph(e, graphs[i][1], name)
        if found is not None:
            gone = graphs[i + 1][0] if i + 1 < len(graphs) else None
            return found | {"gone_after": gone}
    return None


def _in_graph(e: Explanation, graph: Graph, name: str) -> Found | None:
    bare, names = name.lstrip("%@"), name_values(graph)
    by_name = {n: v for v, n in names.items()}
    value = None if name.startswith("@") else by_name.get(f"%{bare}")
    if value is not None and value.op is not None:
        extra = {w.name: weight(w) for w in graph.weights.values()}
        return _op(e, origin(value.op, names), f"%{bare}", extra)
    if value is not None:
        return {"kind": "input", "name": f"%{bare}", "type": str(value.type)}
    if not name.startswith("%") and bare in graph.weights:
        return _weight(e, bare, weight(graph.weights[bare]))
    return None


def _op(e: Explanation, o: dict[str, Any], name: str, weights: dict[str, Any] | None = None) -> Found:
    known = e.record["weights"] if weights is None else weights
    by_value = {other["value"]: other for other in e.record["origins"].values()} if weights is None else {}
    nodes = [n for n, other in e.record["origins"].items() if other["value"] == o["value"]] if weights is None else []
    reads = dict.fromkeys(w for part in _parts(o, by_value) for w in part["reads"])
    return {"kind": "op", "name": name, **o, "nodes": nodes, "passes": _whys(e, o["passes"]),
            "reads": [_weight(e, w, known[w]) for w in reads],
            "history": _history(e, f"%{o['value']}"), "gone_after": None}


def _parts(o: dict[str, Any], by_value: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The op, and those that a pass made for it alone: their values are named after its own."""
    yield o
    for operand in o["operands"].values():
        if operand.startswith(f"%{o['value']}.") and operand[1:] in by_value:
            yield from _parts(by_value[operand[1:]], by_value)


def _weight(e: Explanation, name: str, w: dict[str, Any]) -> Found:
    readers = [n for n, o in e.record["origins"].items() if name in o["reads"]]
    return {"kind": "weight", "name": f"@{name}", **w, "passes": _whys(e, w["passes"]), "read_by": readers,
            "gone_after": None}


def _whys(e: Explanation, passes: list[str]) -> list[dict[str, str]]:
    """Passes in the order they ran, each with its sentence."""
    return [{"pass": s["pass_"], "why": s["why"]} for s in e.record["pipeline"] if s["pass_"] in passes]


def _history(e: Explanation, name: str) -> list[dict[str, str]]:
    """The line that defines a value, after each pass that changed it; empty for an artifact whose graphs were not made."""
    out: list[dict[str, str]] = []
    for pass_, graph in e.compiled.snapshots if e.compiled else ():
        line = next((text for text in show(graph).splitlines() if name in _defined(text)), None)
        if line and (not out or out[-1]["text"] != line.strip()):
            out.append({"after": pass_, "text": line.strip()})
    return out


def _defined(line: str) -> list[str]:
    """The values on the left of an op's line."""
    return line.split(" = ")[0].strip().split(", ") if line.startswith("  %") and " = " in line else []


def _value(result: str) -> str:
    return result.split(":")[0]


def _names(e: Explanation) -> Iterator[str]:
    r = e.record
    yield from r["origins"]
    for o in r["origins"].values():
        yield from (v for result in o["results"] for v in (_value(result), _value(result)[1:]))
    for w in r["weights"]:
        yield from (f"@{w}", w)
    yield from (t["tensor"] for t in r["tensors"])
    for _, graph in e.compiled.snapshots if e.compiled else ():
        yield from (n for name in name_values(graph).values() for n in (name, name[1:]))
