"""Block-quantised weights stay packed, with exactly the values of the file, where a kernel can read them."""
from __future__ import annotations

from dataclasses import dataclass

from uaii.ir.core import Weight
from uaii.ir.ops import Add, BlockSum, Embedding, EmbeddingNBits, Linear, MatMulNBits
from uaii.ir.recipe import SUB_BLOCKS, make
from uaii.ir.target import Target
from uaii.ir.types import BLOCKS, FLOATS
from uaii.passes.base import Answer, Pass, Rewrite, Why

# Bits of the kernel that holds a block type's integers exactly, and whether blocks also add an offset.
PACKED = {"q4_0": (4, False), "q4_1": (4, True), "q8_0": (8, False)}


@dataclass(frozen=True)
class PackLinear(Pass):
    """linear over blocks becomes matmul_nbits over their integers and scales.

    What an affine block adds beyond that is a product of the block sums of x with the offsets.
    """

    target: Target
    int8_activations: bool = True
    name = "pack-linear"
    why = "the blocks' integers and scales fit the kernel as they are"
    root = Linear

    def rule(self, op: Linear, rw: Rewrite) -> Answer:
        w = op.weight
        if w.type.elem in FLOATS:
            return None
        if not isinstance(w, Weight) or w.type.elem not in PACKED:
            return Why(f"no kernel holds {w.type.elem} blocks exactly")
        bits, affine = PACKED[w.type.elem]
        block = SUB_BLOCKS[w.type.elem]
        quants = rw.weight(f"{w.name}.quants", make("quants", w.recipe, bits), w)
        scales = rw.weight(f"{w.name}.scales", make("scales", w.recipe), w)
        y = MatMulNBits(op.x, quants, scales, op.bias, bits=bits, block=block, int8_activations=self.int8_activations)
        if refusal := self.target.refuses(y):
            return Why(refusal)
        if not affine:
            return y.results
        offsets = rw.weight(f"{w.name}.offsets", make("offsets", w.recipe, bits), w)
        return Add(y.out, Linear(BlockSum(op.x, block=block).out, offsets).out).results


@dataclass(frozen=True)
class PackEmbedding(Pass):
    """embedding over symmetric blocks becomes a lookup of packed rows."""

    target: Target
    name = "pack-embedding"
    why = "rows are looked up packed and scaled on the way out"
    root = Embedding

    def rule(self, op: Embedding, rw: Rewrite) -> Answer:
        t = op.table
        if t.type.elem in FLOATS:
            return None
        if not isinstance(t, Weight) or PACKED.get(t.type.elem, (0, True))[1]:
            return Why(f"{t.type.elem} blocks have an offset, or no lookup kernel holds them exactly")
        bits, block = PACKED[t.type.elem][0], SUB_BLOCKS[t.type.elem]
        rows, width = t.type.sizes
        flat = make("reshape", make("quants", t.recipe, bits), (rows, width * bits // 8))
        made = EmbeddingNBits(op.ids, rw.weight(f"{t.name}.rows", flat, t),
                              rw.weight(f"{t.name}.scales", make("scales", t.recipe), t), bits=bits, block=block)
        refusal = self.target.refuses(made)
        return Why(refusal) if refusal else made.results


@dataclass(frozen=True)
class Dequantise(Pass):
    """linear over blocks becomes linear over the f32 values that the blocks mean."""

    name = "dequantise-linear"
    why = "computed on the f32 values that the blocks mean"
    root = Linear

    def rule(self, op: Linear, rw: Rewrite) -> Answer:
        if op.weight.type.elem not in BLOCKS or not isinstance(op.weight, Weight):
            return None
        f32 = rw.weight(f"{op.weight.name}.f32", make("dequant", op.weight.recipe), op.weight)
        return Linear(op.x, f32, op.bias).results


@dataclass(frozen=True)
class DequantiseEmbedding(Pass):
    """embedding over blocks becomes embedding over the f32 values that the blocks mean."""

    name = "dequantise-embedding"
    why = "looked up in the f32 values that the blocks mean"
    root = Embedding

    def rule(self, op: Embedding, rw: Rewrite) -> Answer:
        if op.table.type.elem not in BLOCKS or not isinstance(op.table, Weight):
            return None
        return Embedding(op.ids, rw.weight(f"{op.table.name}.f32", make("dequant", op.table.recipe), op.table)).results
