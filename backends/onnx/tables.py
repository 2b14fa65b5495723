"""Rotation tables are computed in the graph, from a few frequencies: onnxruntime folds them once when it loads the model.

Stored, they would take positions * width * 4 bytes twice: more than a tenth of a small model's weights.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from uaii.backends import recipes
from uaii.backends.onnx.emit import weight_name
from uaii.ir.core import Graph, Weight
from uaii.ir.recipe import COMPUTED, Recipe

KINDS = {"rope_cos": "Cos", "rope_sin": "Sin"}


def is_table(w: Weight) -> bool:
    """Whether the graph computes this weight instead of storing it."""
    return w.recipe.op in COMPUTED


@dataclass
class Tables:
    """The nodes of every table, which weight each is for, and the constants they read; a Recipe is a constant to evaluate."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    made_for: dict[str, Weight] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)

    def node(self, w: Weight, kind: str, inputs: list[str], output: str) -> str:
        name = f"/{output}/{kind}"
        self.nodes.append(helper.make_node(kind, inputs, [output], name=name))
        self.made_for[name] = w
        return output

    def constant(self, name: str, value: Any) -> str:
        self.constants[name] = value
        return name


def plan(graph: Graph) -> Tables:
    """angle = position * frequency in f32, as transformers does; then magnitude * cos and sin of it."""
    out, angles = Tables(), dict[tuple[Recipe, int], str]()
    for w in filter(is_table, graph.weights.values()):
        freqs, positions, magnitude = w.recipe.args
        if (freqs, positions) not in angles:
            angles[freqs, positions] = _angle(out, w, f"rope/{len(angles)}", freqs, positions)
        name, kind = weight_name(w), KINDS[w.recipe.op]
        turned = out.node(w, kind, [angles[freqs, positions]], name if magnitude == 1.0 else f"{name}/turned")
        if magnitude != 1.0:
            out.node(w, "Mul", [turned, out.constant(f"{name}/magnitude", np.float32(magnitude))], name)
    return out


def _angle(out: Tables, w: Weight, stem: str, freqs: Recipe, positions: int) -> str:
    ends = [out.constant(f"{stem}/{n}", np.float32(v)) for n, v in (("start", 0), ("stop", positions), ("step", 1))]
    row = out.node(w, "Range", ends, f"{stem}/positions")
    column = out.node(w, "Unsqueeze", [row, out.constant(f"{stem}/axis", np.array([1], np.int64))], f"{stem}/column")
    return out.node(w, "Mul", [column, out.constant(f"{stem}/freqs", freqs)], f"{stem}/angle")


def add_tables(model: onnx.ModelProto, graph: Graph, source: recipes.Source) -> None:
    """Puts the nodes of every table in front of the model's."""
    tables = plan(graph)
    for name, value in tables.constants.items():
        array = recipes.evaluate(value, source) if isinstance(value, Recipe) else value
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    nodes = [*tables.nodes, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
