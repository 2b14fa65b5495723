"""Elementwise arithmetic and activations."""
from __future__ import annotations

from uaii.ir.core import Op, Value
from uaii.ir.types import Tensor

# name -> what it is; the names are those of transformers' ACT2FN that mean one function each
ACTS = {
    "silu": "x * sigmoid(x)", "gelu": "x * Phi(x), erf", "gelu_tanh": "x/2 * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))",
    "relu": "max(x, 0)", "relu2": "max(x, 0)^2", "quick_gelu": "x * sigmoid(1.702 x)",
}


class Add(Op, name="add"):
    """a + b."""

    a: Value
    b: Value

    def infer(self) -> Tensor:
        self.need(self.a.type == self.b.type, f"{self.a.type} + {self.b.type}")
        return self.a.type


class Mul(Op, name="mul"):
    """a * b."""

    a: Value
    b: Value

    def infer(self) -> Tensor:
        self.need(self.a.type == self.b.type, f"{self.a.type} * {self.b.type}")
        return self.a.type


class Scale(Op, name="scale"):
    """x * by."""

    x: Value
    by: float

    def infer(self) -> Tensor:
        return self.x.type


class Softcap(Op, name="softcap"):
    """cap * tanh(x / cap)."""

    x: Value
    cap: float

    def infer(self) -> Tensor:
        self.need(self.cap > 0, f"cap {self.cap} is not positive")
        return self.x.type


class Clamp(Op, name="clamp"):
    """min(max(x, -limit), limit)."""

    x: Value
    limit: float

    def infer(self) -> Tensor:
        self.need(self.limit > 0, f"limit {self.limit} is not positive")
        return self.x.type


class RowGate(Op, name="row_gate"):
    """x [...,E] times sigmoid(score [...,1]): one number between 0 and 1 for each row (Qwen team 2024)."""

    x: Value
    score: Value

    def infer(self) -> Tensor:
        self.need(self.score.type == self.x.type.reshape(*self.x.type.shape[:-1], 1), f"{self.score.type} gates {self.x.type}")
        return self.x.type


class Activation(Op, name="activation"):
    """act(x); see ACTS."""

    x: Value
    act: str

    def infer(self) -> Tensor:
        self.need(self.act in ACTS, f"unknown activation {self.act!r}")
        return self.x.type


class Gated(Op, name="gated"):
    """act(gate) * up (Shazeer 2020)."""

    gate: Value
    up: Value
    act: str

    def infer(self) -> Tensor:
        self.need(self.act in ACTS, f"unknown activation {self.act!r}")
        self.need(self.gate.type == self.up.type, f"{self.gate.type} gates {self.up.type}")
        return self.gate.type
