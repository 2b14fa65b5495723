"""Emits a graph of the ort stage, runs it with onnxruntime, and evaluates the same graph with the reference."""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from uaii.backends import reference
from uaii.backends.onnx.emit import emit
from uaii.backends.onnx.writer import write
from uaii.ir.core import Graph
from uaii.ir.types import FLOATS

Arrays = Mapping[str, Any]


def session(graph: Graph, source: Any, folder: Path) -> ort.InferenceSession:
    """The emitted graph, opened on the CPU without onnxruntime's own rewriting being told anything."""
    model, emitted = emit(graph)
    write(model, graph, source, folder, views=emitted.views)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return ort.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])


def run(graph: Graph, source: Any, given: Arrays, folder: Path) -> list[Any]:
    """The outputs onnxruntime gives; floats are fed as f32."""
    floats = {v.name for v in graph.inputs if v.type.elem in FLOATS}
    feeds = {k: np.asarray(x, np.float32) if k in floats else np.asarray(x) for k, x in given.items()}
    return list(session(graph, source, folder).run(None, feeds))


def means(graph: Graph, source: Any, given: Arrays) -> list[Any]:
    """The outputs the reference gives, in f64, for the same f32 inputs."""
    floats = {v.name for v in graph.inputs if v.type.elem in FLOATS}
    feeds = {k: np.asarray(x, np.float32).astype(np.float64) if k in floats else np.asarray(x) for k, x in given.items()}
    return reference.evaluate(graph, feeds, source)


def far(got: Any, want: Any) -> float:
    """Largest difference, relative to the largest wanted value; shapes must be equal."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"{got.shape} is not {want.shape}"
    assert np.isfinite(got).all() and np.isfinite(want).all()
    return float(np.abs(got - want).max() / max(float(np.abs(want).max()), 1e-30)) if want.size else 0.0


def int8_rows(x: Any, block: int = 32) -> Any:
    """x as accuracy_level 4 sees it: each block rounded to int8 by the largest magnitude over 127 (mlas, QuantizeARow)."""
    blocks = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, block)
    scale = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    rounded = np.rint(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0))
    return (rounded.astype(np.float64) * scale).reshape(x.shape)
