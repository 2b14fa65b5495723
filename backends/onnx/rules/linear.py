"""Lookups, products and norms."""
from __future__ import annotations

import numpy as np

from uaii.backends.onnx.emit import MS, Emit, emits
from uaii.ir import ops


@emits(ops.Embedding)
def embedding(op: ops.Embedding, e: Emit) -> None:
    e.node("Gather", op.table, op.ids, axis=0)


@emits(ops.EmbeddingNBits)
def embedding_nbits(op: ops.EmbeddingNBits, e: Emit) -> None:
    e.node("GatherBlockQuantized", op.quants, op.ids, op.scales, domain=MS, bits=op.bits, block_size=op.block,
           gather_axis=0, quantize_axis=1)


@emits(ops.Linear)
def linear(op: ops.Linear, e: Emit) -> None:
    """The weight stays [out, in], so that a tied table is stored once."""
    product = op.out if op.bias is None else e.temp("product")
    e.node("FusedMatMul", op.x, op.weight, domain=MS, transB=1, outputs=(product,))
    if op.bias is not None:
        e.node("Add", e.name(product), op.bias)


@emits(ops.MatMulNBits)
def matmul_nbits(op: ops.MatMulNBits, e: Emit) -> None:
    n, blocks, _ = op.quants.type.sizes
    e.node("MatMulNBits", op.x, op.quants, op.scales, None, None, op.bias, domain=MS, K=blocks * op.block, N=n,
           bits=op.bits, block_size=op.block, accuracy_level=4 if op.int8_activations else 1)


@emits(ops.BlockSum)
def block_sum(op: ops.BlockSum, e: Emit) -> None:
    shape = e.const(np.array([0] * (op.x.type.rank - 1) + [-1, op.block], np.int64))
    blocks = e.node("Reshape", op.x, shape, outputs=(e.temp("blocks"),))
    e.node("ReduceSum", blocks, e.const(np.array([-1], np.int64)), keepdims=0)


@emits(ops.BlockSpread)
def block_spread(op: ops.BlockSpread, e: Emit) -> None:
    """[B,S,K] -> [B,S,K,1] -> [B,S,K,block] -> [B,S,K*block]."""
    column = e.node("Unsqueeze", op.x, e.const(np.array([-1], np.int64)), outputs=(e.temp("column"),))
    wide = e.node("Tile", column, e.const(np.array([1, 1, 1, op.block], np.int64)), outputs=(e.temp("wide"),))
    e.node("Reshape", wide, e.const(np.array([0, 0, -1], np.int64)))


@emits(ops.RmsNorm)
def rms_norm(op: ops.RmsNorm, e: Emit) -> None:
    op.need(op.offset == 0.0, "the offset must be folded before emission")
    e.node("SimplifiedLayerNormalization", op.x, op.weight, axis=-1, epsilon=op.eps)


@emits(ops.SkipRmsNorm)
def skip_rms_norm(op: ops.SkipRmsNorm, e: Emit) -> None:
    normed, total = op.results
    e.node("SkipSimplifiedLayerNormalization", op.a, op.b, op.weight, domain=MS, epsilon=op.eps,
           outputs=(normed, "", "", total))


@emits(ops.LayerNorm)
def layer_norm(op: ops.LayerNorm, e: Emit) -> None:
    op.need(op.offset == 0.0, "the offset must be folded before emission")
    width = int(op.x.type.shape[-1])
    weight = op.weight if op.weight is not None else e.const(np.ones(width, np.float32), f"const/ones/{width}")
    e.node("LayerNormalization", op.x, weight, op.bias, axis=-1, epsilon=op.eps)


@emits(ops.LastPositions)
def last_positions(op: ops.LastPositions, e: Emit) -> None:
    """Slice from -keep; from 0 when keep is 0, which is all of it."""
    start = e.node("Neg", op.keep, outputs=(e.temp("negative"),))
    one = e.const(np.array([1], np.int64))
    starts = e.node("Reshape", start, one, outputs=(e.temp("start"),))
    e.node("Slice", op.x, starts, e.const(np.array([np.iinfo(np.int64).max], np.int64)), one)


@emits(ops.FlatRows)
def flat_rows(op: ops.FlatRows, e: Emit) -> None:
    e.node("Reshape", op.x, e.const(np.array([-1, *(int(n) for n in op.x.type.shape[2:])], np.int64)))


@emits(ops.GridShape)
def grid_shape(op: ops.GridShape, e: Emit) -> None:
    grid = e.node("Shape", op.like, outputs=(e.temp("grid"),), start=0, end=2)
    e.node("Concat", grid, e.const(np.array(op.rest, np.int64)), axis=0)


@emits(ops.GridRows)
def grid_rows(op: ops.GridRows, e: Emit) -> None:
    e.node("Reshape", op.x, op.shape)


@emits(ops.Gemm)
def gemm(op: ops.Gemm, e: Emit) -> None:
    e.node("Gemm", op.x, op.weight, op.y, transB=1)
