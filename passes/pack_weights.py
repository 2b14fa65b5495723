"""Block-quantised weights stay packed, with exactly the values of the file, where a kernel can read them."""
from __future__ import annotations

import math
from dataclasses import dataclass

from uaii.ir.core import Op, Value, Weight
from uaii.ir.ops import Add, BlockSpread, BlockSum, Cut, Embedding, EmbeddingNBits, Linear, MatMulNBits
from uaii.ir.recipe import Recipe, make
from uaii.ir.target import Target
from uaii.ir.types import BLOCKS, FLOATS, PACKINGS, Tensor
from uaii.passes.base import Answer, Pass, Rewrite, Why


@dataclass(frozen=True)
class Form:
    """One way to hold a matrix: its integers in `bits`, a scale for each `block`, and, of an affine layout, whether the product
    yields the block sums by rows of ones (`inside`) or a node of its own does."""

    bits: int
    block: int
    inside: bool

    def __str__(self) -> str:
        return f"{self.bits} bits x {self.block}{' with rows of sums' if self.inside else ''}"


@dataclass(frozen=True)
class PackLinear(Pass):
    """linear over blocks becomes matmul_nbits over their integers and scales, in the exact form that costs the target least.

    The integers also fit more bits, and a scale may be said for parts of its block. What an affine block adds beyond that is
    a product of the block sums of x with the offsets: a node of their own makes the sums, or rows of ones in the product itself.
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
        if not isinstance(w, Weight):
            return Why("the weight is computed at run time")
        how, (n, blocks) = PACKINGS[w.type.elem], make("scales", w.recipe).type.sizes
        k = blocks * how.size
        forms = [Form(bits, block, inside) for bits in (4, 8) if bits >= how.bits for block in (32, 16)
                 if how.size % block == 0 for inside in (False, True)[:1 + how.affine]]
        costs = {form: self._cost(op.x, n, k, form, how.affine) for form in forms}
        best, *others = sorted(forms, key=costs.__getitem__)
        if costs[best] == math.inf:
            return Why(self.target.refuses(self._product(op.x, n, k, best)) or "")
        f32 = self.target.cost(Linear(op.x, Weight(Tensor("f32", (n, k)), "f32")))
        shares = [f"{form}: {costs[form] / f32:.2f}" for form in (best, *others[:1]) if costs[form] < math.inf]
        rw.why = f"{self.why}; of the time in f32, {', '.join(shares)}"
        return self._packed(op, w, best, rw).results

    def _packed(self, op: Linear, w: Weight, form: Form, rw: Rewrite) -> Op:
        quants, scales, bias = integers(w.recipe, form.bits, form.block), fine("scales", w.recipe, form.block), op.bias
        n, blocks = scales.type.sizes
        if form.inside:
            quants = make("concat", quants, make("block_rows", blocks, form.block, form.bits))
            scales = make("concat", scales, make("fill", 1.0, (blocks, blocks)))
            bias = self._longer(bias, blocks, rw)
        y = MatMulNBits(op.x, rw.weight(f"{w.name}.quants", quants, w), rw.weight(f"{w.name}.scales", scales, w), bias,
                        bits=form.bits, block=form.block, int8_activations=self.int8_activations)
        if not PACKINGS[w.type.elem].affine:
            return y
        product, sums = Cut(y.out, at=n).results if form.inside else (y.out, BlockSum(op.x, block=form.block).out)
        offsets = rw.weight(f"{w.name}.offsets", fine("offsets", w.recipe, form.block), w)
        return Add(product, Linear(sums, offsets).out)

    def _product(self, x: Value, n: int, k: int, form: Form) -> MatMulNBits:
        """What the product of a form would be; nothing reads it."""
        rows, blocks = n + (k // form.block if form.inside else 0), k // form.block
        return MatMulNBits(x, Weight(Tensor("u8", (rows, blocks, form.block * form.bits // 8)), "quants"),
                           Weight(Tensor("f32", (rows, blocks)), "scales"), bits=form.bits, block=form.block,
                           int8_activations=self.int8_activations)

    def _cost(self, x: Value, n: int, k: int, form: Form, affine: bool) -> float:
        y = self._product(x, n, k, form)
        spent = self.target.cost(y)
        if not affine:
            return spent
        sums = BlockSum(x, block=form.block)
        offsets = Linear(sums.out, Weight(Tensor("f32", (n, k // form.block)), "offsets"))
        return spent + self.target.cost(offsets) + self.target.cost(Cut(y.out, at=n) if form.inside else sums)

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


def integers(blocks: Recipe, bits: int, block: int) -> Recipe:
    """The integers [..., K/block, block*bits/8] of a layout with a scale for as many values or for more."""
    whole, times = make("quants", blocks, bits), PACKINGS[blocks.type.elem].size // block
    *rows, count, width = whole.type.sizes
    return whole if times == 1 else make("reshape", whole, (*rows, count * times, width // times))


def fine(what: str, blocks: Recipe, block: int) -> Recipe:
    """Scales or offsets for each `block` values, of a layout that has one for as many or for more."""
    whole, times = make(what, blocks), PACKINGS[blocks.type.elem].size // block
    return whole if times == 1 else make("spread", whole, times)
