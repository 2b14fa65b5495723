"""Bytes that a decoding step must read: from an ONNX graph, or from a checkpoint as it is stored."""
from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import onnx

from uaii import measure
from uaii.compiler import begin
from uaii.frontend.open import open_checkpoint
from uaii.ir.diag import Diagnostic

# Inputs of which a step reads one row; nodes of experts, of whose weights [experts, ...] it reads those of `k` experts.
LOOKED_UP = {"Gather": (0,), "GatherBlockQuantized": (0, 2, 3), "GroupQueryAttention": (7, 8)}
EXPERTS = {"MoE", "QMoE"}


@dataclass(frozen=True)
class Traffic:
    """`weights`: bytes of weights that one step reads. `cached`: per cached tensor its numbers a token, the bytes of one, and the
    window of tokens that attention looks at, None for all of them."""

    weights: int
    nodes: int
    cached: tuple[tuple[int, int, int | None], ...]

    def cache(self, length: float, width: int | None = None) -> float:
        """Bytes of keys and values that a step reads after `length` tokens; `width` stands for the bytes of one number."""
        return sum(count * (width or own) * min(length, window or length) for count, own, window in self.cached)


def traffic(graph: Path) -> Traffic:
    """Of an ONNX file, whose weights are not loaded. Every initializer that a node reads counts once, however many read it."""
    model = onnx.load(str(graph), load_external_data=False).graph
    sizes = {t.name: (_nbytes(t), t.dims[0] if t.dims else 1) for t in model.initializer}
    most: dict[str, float] = {}
    windows: dict[str, int | None] = {}
    for node in model.node:
        rows, taken = LOOKED_UP.get(node.op_type, ()), next((a.i for a in node.attribute if a.name == "k"), 1)
        for i, name in enumerate(node.input):
            if name in sizes:
                nbytes, count = sizes[name]
                read = 1 if i in rows else min(taken, count) if node.op_type in EXPERTS else count
                most[name] = max(most.get(name, 0), nbytes * read / count)
            windows[name] = next((a.i for a in node.attribute if a.name == "local_window_size" and a.i > 0), None)
    cached = tuple((math.prod(d.dim_value or 1 for d in v.type.tensor_type.shape.dim), _bits(v.type.tensor_type.elem_type) // 8,
                    windows.get(v.name)) for v in model.input if v.name.startswith("past_key_values."))
    return Traffic(round(sum(most.values())), len(model.node), cached)


def _nbytes(tensor: onnx.TensorProto) -> int:
    return int(math.prod(tensor.dims)) * _bits(tensor.data_type) // 8


def _bits(kind: int) -> int:
    small = kind in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4)
    return 4 if small else 8 * int(onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize)


def stored(model: Path, accept: tuple[str, ...], as_f32: bool = False) -> int | None:
    """Weight bytes that a step reads of a checkpoint kept as it is, or in f32; None for one that is refused."""
    try:
        made = begin(open_checkpoint(model), accept=accept)
    except Diagnostic:
        return None
    found = measure.read_per_token(made.lowered.graph)
    tensors = made.checkpoint.tensors.values()
    return found * 4 * sum(t.type.count for t in tensors) // sum(t.nbytes for t in tensors) if as_f32 else found
