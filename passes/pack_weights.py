"""Block-quantised weights stay packed, with exactly the values of the file, where a kernel can read them."""
from __future__ import annotations

from dataclasses import dataclass

from uaii.ir.core import Value, Weight
from uaii.ir.ops import Add, BlockSpread, BlockSum, Cut, Embedding, EmbeddingNBits, Linear, MatMulNBits
from uaii.ir.recipe import make
from uaii.ir.target import Target
from uaii.ir.types import BLOCKS, FLOATS, PACKINGS
from uaii.passes.base import Answer, Pass, Rewrite, Why


@dataclass(frozen=True)
class PackLinear(Pass):
    """linear over blocks becomes matmul_nbits over their integers and scales.

    What an affine block adds beyond that is a product of the block sums of x with the offsets. Up to `inside` features, rows
    of ones in the product itself yield the sums, which reads inside/32 rows more; beyond, they are a node of their own.
    """

    target: Target
    int8_activations: bool = True
    inside: int = 1536
    name = "pack-linear"
    why = "the blocks' integers and scales fit the kernel as they are"
    root = Linear

    def rule(self, op: Linear, rw: Rewrite) -> Answer:
        w = op.weight
        if w.type.elem in FLOATS:
            return None
        if not isinstance(w, Weight):
            return Why("the weight is computed at run time")
        how = PACKINGS[w.type.elem]
        quants, scales = make("quants", w.recipe, how.bits), make("scales", w.recipe)
        n, blocks = scales.type.sizes
        summed = how.affine and blocks * how.size <= self.inside
        bias = op.bias
        if summed:
            quants = make("concat", quants, make("block_rows", blocks, how.size, how.bits))
            scales = make("concat", scales, make("fill", 1.0, (blocks, blocks)))
            bias = self._longer(bias, blocks, rw)
        y = MatMulNBits(op.x, rw.weight(f"{w.name}.quants", quants, w), rw.weight(f"{w.name}.scales", scales, w), bias,
                        bits=how.bits, block=how.size, int8_activations=self.int8_activations)
        if refusal := self.target.refuses(y):
            return Why(refusal)
        if not how.affine:
            return y.results
        product, sums = Cut(y.out, at=n).results if summed else (y.out, BlockSum(op.x, block=how.size).out)
        offsets = rw.weight(f"{w.name}.offsets", make("offsets", w.recipe), w)
        return Add(product, Linear(sums, offsets).out).results

    @staticmethod
    def _longer(bias: Value | None, more: int, rw: Rewrite) -> Value | None:
        """The bias with zeros for the rows that yield sums."""
        if not isinstance(bias, Weight):
            return bias
        f32 = bias.recipe if bias.type.elem == "f32" else make("cast", bias.recipe, "f32")
        return rw.weight(f"{bias.name}.longer", make("concat", f32, make("fill", 0.0, (more,))), bias)


@dataclass(frozen=True)
class PackEmbedding(Pass):
    """embedding over blocks becomes a lookup of packed rows; an affine block's offset is looked up beside them."""

    name = "pack-embedding"
    why = "rows are looked up packed and scaled on the way out"
    root = Embedding

    def rule(self, op: Embedding, rw: Rewrite) -> Answer:
        t = op.table
        if t.type.elem in FLOATS:
            return None
        if not isinstance(t, Weight):
            return Why("the table is computed at run time")
        how = PACKINGS[t.type.elem]
        rows, width = t.type.sizes
        flat = make("reshape", make("quants", t.recipe, how.bits), (rows, width * how.bits // 8))
        made = EmbeddingNBits(op.ids, rw.weight(f"{t.name}.rows", flat, t),
                              rw.weight(f"{t.name}.scales", make("scales", t.recipe), t), bits=how.bits, block=how.size)
        if not how.affine:
            return made.results
        offsets = rw.weight(f"{t.name}.offsets", make("offsets", t.recipe), t)
        return Add(made.out, BlockSpread(Embedding(op.ids, offsets).out, block=how.size).out).results


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
