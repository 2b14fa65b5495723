"""An artifact on disk beside what its graph would be written as: weights bit for bit, nodes one by one."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.external_data_helper import uses_external_data

from uaii.backends import recipes
from uaii.backends.onnx.emit import Emit, weight_name
from uaii.backends.onnx.tables import add_tables, is_table
from uaii.backends.onnx.writer import DATA
from uaii.backends.ort.exact import read_graph
from uaii.backends.slices import slices
from uaii.ir.core import Graph, Weight
from uaii.ir.recipe import Recipe, make

Said = Mapping[str, Any]  # weights by name, as the manifest has them: a record that holds the recipe


@dataclass
class Found:
    """What differs. `compared` counts the weights whose bytes were compared, `differing` names those that are other bytes,
    `unlike` those that this compiler would make otherwise, and `nodes` says what is not the same in the graph."""

    compared: int = 0
    differing: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)


def compare(folder: Path, graph: Graph, emitted: tuple[onnx.ModelProto, Emit], source: recipes.Source, said: Said,
            tell: Callable[[int, int], None]) -> Found:
    """The folder's model.onnx and its data beside the emitted graph; a weight is compared where the manifest has its recipe.
    Raises Malformed S604."""
    have, (model, e) = read_graph(folder), emitted
    add_tables(model, graph, source)
    found = Found(nodes=list(_nodes(have, model)))
    stored = {t.name: t for t in have.graph.initializer if uses_external_data(t)}
    own = [w for w in graph.weights.values() if w.recipe.op != "view" and not is_table(w)]
    done, total = 0, sum(w.type.nbytes for w in own)
    for w in own:
        parts = _parts(w, stored, e)
        facts = said.get(w.name)
        if not isinstance(facts, dict) or facts.get("recipe") != str(w.recipe) or not parts:
            found.unlike.append(w.name)
            continue
        found.compared += 1
        if not all(_same(folder, stored[name], recipe, source) for name, recipe in parts):
            found.differing.append(w.name)
        done += w.type.nbytes
        tell(done, total)
    return found


def _parts(w: Weight, stored: dict[str, onnx.TensorProto], e: Emit) -> list[tuple[str, Recipe]]:
    """The initializers that hold the weight and their recipes: itself, or one for each of its elements."""
    if weight_name(w) in stored:
        return [(weight_name(w), w.recipe)]
    return [(name, make("rows", w.recipe, i, i + 1)) for name, (of, i) in e.views.items() if of is w and name in stored]


def _same(folder: Path, t: onnx.TensorProto, recipe: Recipe, source: recipes.Source) -> bool:
    """Whether the bytes on disk are the recipe's values."""
    at = {entry.key: entry.value for entry in t.external_data}
    file, offset, length = folder / at.get("location", DATA), int(at.get("offset", 0)), int(at.get("length", 0))
    if length != recipe.type.nbytes or not file.is_file() or file.stat().st_size < offset + length:
        return False
    data = np.memmap(file, np.uint8, "r", offset, (length,)) if length else np.zeros(0, np.uint8)
    place = 0
    for piece in slices(recipe):
        values = np.ascontiguousarray(recipes.evaluate(piece, source)).reshape(-1).view(np.uint8)
        if not np.array_equal(data[place:place + values.nbytes], values):
            return False
        place += values.nbytes
    return True


def _nodes(have: onnx.ModelProto, want: onnx.ModelProto) -> Iterator[str]:
    """What the graphs do not have in common: nodes by name, functions, and constants that lie in the graph itself."""
    ours, theirs = ({n.name: n for n in m.graph.node} for m in (have, want))
    yield from (f"node {name} is missing" for name in theirs.keys() - ours.keys())
    yield from (f"node {name} is not of this compile" for name in ours.keys() - theirs.keys())
    for name in (n for n in theirs if n in ours and ours[n] != theirs[n]):
        yield f"node {name}: {', '.join(_changes(ours[name], theirs[name]))}"
    if [f.SerializeToString() for f in have.functions] != [f.SerializeToString() for f in want.functions]:
        yield "a function of the domain ai.uaii has another body"
    small = [{t.name: t.SerializeToString() for t in m.graph.initializer if not uses_external_data(t)} for m in (have, want)]
    yield from (f"constant {name} has another value" for name in sorted(small[1]) if small[0].get(name) != small[1][name])


def _changes(ours: onnx.NodeProto, theirs: onnx.NodeProto) -> Iterator[str]:
    if (ours.op_type, ours.domain) != (theirs.op_type, theirs.domain):
        yield f"{ours.op_type} instead of {theirs.op_type}"
    if ours.input != theirs.input or ours.output != theirs.output:
        yield "other inputs or outputs"
    now, then = ({a.name: _value(a) for a in n.attribute} for n in (ours, theirs))
    yield from (f"{k} = {now.get(k)} instead of {then.get(k)}" for k in {**now, **then} if now.get(k) != then.get(k))


def _value(a: onnx.AttributeProto) -> Any:
    return onnx.helper.get_attribute_value(a)
