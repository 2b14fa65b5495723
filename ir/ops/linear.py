"""Lookups, products and norms."""
from __future__ import annotations

from uaii.ir.core import Op, Value
from uaii.ir.types import BLOCKS, FLOATS, INTS, Tensor

STORED = (*FLOATS, *BLOCKS)


class Embedding(Op, name="embedding"):
    """table[ids]: row lookup, in f32 whatever the table is stored as."""

    ids: Value
    table: Value

    def infer(self) -> Tensor:
        self.need(self.ids.type.elem in INTS, "ids must be integers")
        self.need(self.table.type.rank == 2 and self.table.type.elem in STORED, f"table is {self.table.type}")
        return Tensor("f32", (*self.ids.type.shape, self.table.type.shape[1]))


class Linear(Op, name="linear"):
    """x @ weight^T + bias; weight is [out, in], as checkpoints store it, in any storage type."""

    x: Value
    weight: Value
    bias: Value | None = None

    def infer(self) -> Tensor:
        self.need(self.weight.type.rank == 2 and self.weight.type.elem in STORED, f"weight is {self.weight.type}")
        out, inner = self.weight.type.shape
        self.need(inner == self.x.type.shape[-1], f"{self.x.type} does not meet weight {self.weight.type}")
        if self.bias is not None:
            self.need(self.bias.type.shape == (out,), f"bias {self.bias.type} does not span {out} outputs")
        return self.x.type.reshape(*self.x.type.shape[:-1], out)

    def macs(self) -> int:
        return self.weight.type.count


class RmsNorm(Op, name="rms_norm"):
    """x / sqrt(mean(x^2) + eps) * (weight + offset) over the last axis (Zhang & Sennrich 2019)."""

    x: Value
    weight: Value
    eps: float
    offset: float = 0.0

    def infer(self) -> Tensor:
        self.need(self.x.type.elem in FLOATS, f"x must be float, is {self.x.type}")
        self.need(self.weight.type.shape == self.x.type.shape[-1:],
                  f"weight {self.weight.type} does not span the last axis of {self.x.type}")
        return self.x.type


class LayerNorm(Op, name="layer_norm"):
    """(x - mean) / sqrt(var + eps) * (weight + offset) + bias over the last axis (Ba et al. 2016).

    weight and bias span that axis, or the last two where each head has its own.
    """

    x: Value
    weight: Value | None
    bias: Value | None
    eps: float
    offset: float = 0.0

    def infer(self) -> Tensor:
        for v in (self.weight, self.bias):
            self.need(v is None or v.type.shape == self.x.type.shape[-1:] or v.type.shape == self.x.type.shape[-2:],
                      f"parameters do not span the last axis of {self.x.type}, or the last two")
        self.need(self.weight is not None or self.offset == 0.0, "an offset needs a weight")
        return self.x.type


class LastPositions(Op, name="last_positions"):
    """x[:, -keep:] for keep > 0, all of x for keep = 0; the new length is the dimension L."""

    x: Value
    keep: Value

    def infer(self) -> Tensor:
        self.need(self.keep.type == Tensor("i64", ()), f"keep is {self.keep.type}")
        b, _, *rest = self.x.type.shape
        return self.x.type.reshape(b, "L", *rest)
