"""Types are values: frozen, compared by content, printed as `bf16[B,S,2048]`."""
from __future__ import annotations

import math
from dataclasses import dataclass

FLOATS = ("f32", "f16", "bf16", "f64")
INTS = ("i64", "i32", "i8", "u8", "bool")

Dim = int | str  # a str names a symbolic dimension: B batch, S new tokens, P past tokens, T = P + S


@dataclass(frozen=True)
class Block:
    """A storage layout: `size` consecutive values of a row share one block of `nbytes` bytes."""

    size: int
    nbytes: int


# Block layouts of ggml (ggml-common.h); the names are ggml's, lower case.
BLOCKS: dict[str, Block] = {
    "q4_0": Block(32, 18), "q4_1": Block(32, 20), "q5_0": Block(32, 22), "q5_1": Block(32, 24), "q8_0": Block(32, 34),
    "q2_k": Block(256, 84), "q3_k": Block(256, 110), "q4_k": Block(256, 144), "q5_k": Block(256, 176),
    "q6_k": Block(256, 210), "iq4_nl": Block(32, 18), "iq4_xs": Block(256, 136), "mxfp4": Block(32, 17),
    "iq2_xxs": Block(256, 66), "iq2_xs": Block(256, 74), "iq2_s": Block(256, 82), "iq3_xxs": Block(256, 98),
    "iq3_s": Block(256, 110), "iq1_s": Block(256, 50), "iq1_m": Block(256, 56), "tq1_0": Block(256, 54),
    "tq2_0": Block(256, 66),
}


@dataclass(frozen=True)
class Packing:
    """How a block layout's integers fit a kernel: `size` values share a scale, an integer takes `bits` there, and the affine
    layouts add an offset to each block."""

    size: int
    bits: int
    affine: bool = False


PACKINGS: dict[str, Packing] = {
    "q4_0": Packing(32, 4), "q4_1": Packing(32, 4, affine=True), "q5_0": Packing(32, 8), "q5_1": Packing(32, 8, affine=True),
    "q8_0": Packing(32, 8), "q2_k": Packing(16, 8, affine=True), "q3_k": Packing(16, 8), "q4_k": Packing(32, 4, affine=True),
    "q5_k": Packing(32, 8, affine=True), "q6_k": Packing(16, 8), "iq4_nl": Packing(32, 8), "iq4_xs": Packing(32, 8),
    "mxfp4": Packing(32, 8), "iq2_xxs": Packing(32, 8), "iq2_xs": Packing(16, 8), "iq2_s": Packing(16, 8),
    "iq3_xxs": Packing(32, 8), "iq3_s": Packing(32, 8), "iq1_s": Packing(32, 8), "iq1_m": Packing(16, 8),
    "tq1_0": Packing(32, 4), "tq2_0": Packing(32, 4),
}
ROUNDED = {8: "q8_0", 4: "q4_0"}  # the layout that floats are rounded to, by bits
FP8 = "f8_e4m3"  # codes of 8 bits without infinities (OCP 8-bit floating point 1.0); values only together with factors
WIDTHS = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, FP8: 1, "i64": 8, "i32": 4, "i8": 1, "u8": 1, "bool": 1}
ELEMS = (*WIDTHS, *BLOCKS)


@dataclass(frozen=True)
class Tensor:
    """An element type and a shape. Block element types store the last axis in blocks."""

    elem: str
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.elem}[{','.join(map(str, self.shape))}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a type without symbolic dimensions."""
        if not all(isinstance(d, int) for d in self.shape):
            raise TypeError(f"{self} has symbolic dimensions")
        return tuple(d for d in self.shape if isinstance(d, int))

    @property
    def count(self) -> int:
        return math.prod(self.sizes)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored form; the type must have no symbolic dimension."""
        if self.elem in BLOCKS:
            block = BLOCKS[self.elem]
            return self.count // block.size * block.nbytes
        return self.count * WIDTHS[self.elem]

    def of(self, elem: str) -> Tensor:
        return Tensor(elem, self.shape)

    def reshape(self, *shape: Dim) -> Tensor:
        return Tensor(self.elem, shape)
