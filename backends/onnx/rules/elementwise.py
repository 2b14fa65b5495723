"""Elementwise arithmetic and activations."""
from __future__ import annotations

import numpy as np

from uaii.backends.onnx.emit import MS, Emit, emits
from uaii.ir import ops
from uaii.ir.core import Value


@emits(ops.Add)
def add(op: ops.Add, e: Emit) -> None:
    e.node("Add", op.a, op.b)


@emits(ops.Mul)
def mul(op: ops.Mul, e: Emit) -> None:
    e.node("Mul", op.a, op.b)


@emits(ops.Scale)
def scale(op: ops.Scale, e: Emit) -> None:
    e.node("Mul", op.x, e.const(np.float32(op.by)))


@emits(ops.Softcap)
def softcap(op: ops.Softcap, e: Emit) -> None:
    cap = e.const(np.float32(op.cap))
    inner = e.node("Div", op.x, cap, outputs=(e.temp("inner"),))
    bent = e.node("Tanh", inner, outputs=(e.temp("bent"),))
    e.node("Mul", bent, cap)


@emits(ops.Clamp)
def clamp(op: ops.Clamp, e: Emit) -> None:
    e.node("Clip", op.x, e.const(np.float32(-op.limit)), e.const(np.float32(op.limit)))


@emits(ops.Activation)
def activation(op: ops.Activation, e: Emit) -> None:
    act(e, op.act, op.x, op.out)


@emits(ops.Gated)
def gated(op: ops.Gated, e: Emit) -> None:
    e.node("Mul", act(e, op.act, op.gate, e.temp("act")), op.up)


@emits(ops.RowGate)
def row_gate(op: ops.RowGate, e: Emit) -> None:
    e.node("Mul", op.x, e.node("Sigmoid", op.score, outputs=(e.temp("share"),)))


def act(e: Emit, name: str, x: Value, out: Value | str) -> str:
    """Nodes for act(x) into `out`; the activation's own kernel where onnxruntime has one."""
    match name:
        case "silu":
            return e.node("QuickGelu", x, outputs=(out,), domain=MS, alpha=1.0)
        case "quick_gelu":
            return e.node("QuickGelu", x, outputs=(out,), domain=MS, alpha=1.702)
        case "gelu":
            return e.node("Gelu", x, outputs=(out,), domain=MS)
        case "gelu_tanh":
            return e.node("Gelu", x, outputs=(out,), approximate="tanh")
        case "relu":
            return e.node("Relu", x, outputs=(out,))
        case "relu2":
            half = e.node("Relu", x, outputs=(e.temp("relu"),))
            return e.node("Mul", half, half, outputs=(out,))
        case _:
            raise AssertionError(name)


@emits(ops.Cut)
def cut(op: ops.Cut, e: Emit) -> None:
    e.node("Split", op.x, e.const(np.array([op.at, int(op.x.type.shape[-1]) - op.at], np.int64)), axis=-1)


@emits(ops.Halves)
def halves(op: ops.Halves, e: Emit) -> None:
    e.node("Split", op.x, axis=-1, num_outputs=2)
