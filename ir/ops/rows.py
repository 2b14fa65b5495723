"""Batch and positions as one axis of rows, for kernels that take matrices."""
from __future__ import annotations

from uaii.ir.core import Op, Value
from uaii.ir.types import Tensor


class FlatRows(Op, name="flat_rows", stages="ort"):
    """[B,S,...] -> [R,...], R = B*S."""

    x: Value

    def infer(self) -> Tensor:
        self.need(self.x.type.shape[:2] == ("B", "S"), f"{self.x.type} has no positions")
        return self.x.type.reshape("R", *self.x.type.shape[2:])


class GridShape(Op, name="grid_shape", stages="ort"):
    """The shape [B,S,*rest], B and S those of like [B,S,...]: i64 [2+len(rest)]."""

    like: Value
    rest: tuple[int, ...]

    def infer(self) -> Tensor:
        self.need(self.like.type.shape[:2] == ("B", "S"), f"{self.like.type} has no positions")
        return Tensor("i64", (2 + len(self.rest),))


class GridRows(Op, name="grid_rows", stages="ort"):
    """[R,...] -> [B,S,...], in the shape that grid_shape gives."""

    x: Value
    shape: Value

    def infer(self) -> Tensor:
        self.need(self.x.type.shape[0] == "R" and self.shape.type == Tensor("i64", (1 + self.x.type.rank,)), f"{self.x.type}")
        return self.x.type.reshape("B", "S", *self.x.type.shape[1:])


class Gemm(Op, name="gemm", stages="ort"):
    """y + x @ weight^T over rows: y [R,N], x [R,K], weight [N,K]."""

    y: Value
    x: Value
    weight: Value

    def infer(self) -> Tensor:
        rows, inner = self.x.type.shape
        self.need(self.y.type.shape == (rows, self.weight.type.shape[0]) and self.weight.type.shape[1] == inner,
                  f"{self.y.type} + {self.x.type} @ {self.weight.type}^T")
        return self.y.type
