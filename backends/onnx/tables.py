"""Rotation tables are computed in the graph, from a few frequencies: onnxruntime folds them once when it loads the model.

Stored, they would take positions * width * 4 bytes twice: more than a tenth of a small model's weights.
"""
from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from uaii.backends import recipes
from uaii.backends.onnx.emit import weight_name
from uaii.ir.core import Graph, Weight
from uaii.ir.recipe import Recipe

KINDS = {"rope_cos": "Cos", "rope_sin": "Sin"}


def is_table(w: Weight) -> bool:
    """Whether the graph computes this weight instead of storing it."""
    return w.recipe.op in KINDS


def add_tables(model: onnx.ModelProto, graph: Graph, source: recipes.Source) -> None:
    """Puts the nodes of every table in front of the model's: angle = position * frequency in f32, as transformers does."""
    made: list[onnx.NodeProto] = []
    angles: dict[tuple[Recipe, int], str] = {}
    for w in filter(is_table, graph.weights.values()):
        freqs, positions, magnitude = w.recipe.args
        if (freqs, positions) not in angles:
            angles[freqs, positions] = _angle(model, made, f"rope/{len(angles)}", recipes.evaluate(freqs, source), positions)
        name, kind = weight_name(w), KINDS[w.recipe.op]
        turned = name if magnitude == 1.0 else f"{name}/turned"
        made.append(helper.make_node(kind, [angles[freqs, positions]], [turned], name=f"/{name}/{kind}"))
        if magnitude != 1.0:
            scale = _const(model, f"{name}/magnitude", np.float32(magnitude))
            made.append(helper.make_node("Mul", [turned, scale], [name], name=f"/{name}/Mul"))
    nodes = [*made, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _angle(model: onnx.ModelProto, made: list[onnx.NodeProto], stem: str, freqs: recipes.Array, positions: int) -> str:
    ends = [_const(model, f"{stem}/{n}", np.float32(v)) for n, v in (("start", 0), ("stop", positions), ("step", 1))]
    row = _const(model, f"{stem}/freqs", np.asarray(freqs, np.float32)[None, :])
    last = _const(model, f"{stem}/axis", np.array([1], np.int64))
    made.append(helper.make_node("Range", ends, [f"{stem}/positions"], name=f"/{stem}/Range"))
    made.append(helper.make_node("Unsqueeze", [f"{stem}/positions", last], [f"{stem}/column"], name=f"/{stem}/Unsqueeze"))
    made.append(helper.make_node("Mul", [f"{stem}/column", row], [f"{stem}/angle"], name=f"/{stem}/Mul"))
    return f"{stem}/angle"


def _const(model: onnx.ModelProto, name: str, value: recipes.Array | np.float32) -> str:
    proto: TensorProto = numpy_helper.from_array(np.asarray(value), name)
    model.graph.initializer.append(proto)
    return name
