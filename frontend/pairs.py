"""Weights that two stored tensors hold together: codes in one, their scales in the other."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from uaii.ir import loc as L
from uaii.ir.diag import Malformed
from uaii.ir.recipe import Recipe, make
from uaii.ir.types import Tensor

if TYPE_CHECKING:
    from uaii.frontend.build import Build

Shape = tuple[int, ...]


class Pair(Protocol):
    """Two tensors that are one weight: their names by the first one's, their types by its shape, and what both mean."""

    def names(self, name: str) -> tuple[str, str]: ...

    def stored(self, shape: Shape) -> tuple[Tensor, Tensor]: ...

    def apply(self, first: Recipe, second: Recipe) -> Recipe: ...


@dataclass(frozen=True)
class Mxfp4:
    """NAME_blocks u8 [...,K/32,16], two FP4 codes a byte, and the exponents of each 32, NAME_scales u8 [...,K/32].

    Source: OCP Microscaling Formats 1.0; transformers integrations/mxfp4.py.
    """

    def names(self, name: str) -> tuple[str, str]:
        return name, name.removesuffix("_blocks") + "_scales"

    def stored(self, shape: Shape) -> tuple[Tensor, Tensor]:
        counts = (*shape[:-1], -(-shape[-1] // 32))
        return Tensor("u8", (*counts, 16)), Tensor("u8", counts)

    def apply(self, first: Recipe, second: Recipe) -> Recipe:
        return make("mxfp4", first, second)


def paired(b: Build, pair: Pair, names: tuple[str, ...], part: str, want: Shape, sizes: list[L.Loc]) -> Recipe:
    """The weight `part` of this shape, which follows from `sizes`, out of two tensors; it counts as the first one's values.

    Raises Malformed T203 for other types or shapes, and for rows that are no whole number of blocks.
    """
    loc = L.join(*(L.Stored(b.ckpt.tensors[n].file.name, n) for n in names), *sizes)
    hint = f"check the sizes in {b.c.file}, or that the weights are this model's"
    both = []
    for name, needs in zip(names, pair.stored(want), strict=True):
        stored = b.ckpt.tensors[name].type
        if stored != needs:
            raise Malformed("T203", f"tensor {name} is {stored}, {b.family} needs {needs} here", loc,
                            why=f"{' and '.join(names)} are one weight", hint=hint)
        both.append(make("load", name, stored))
    recipe = pair.apply(*both)
    if recipe.type.sizes != want:
        raise Malformed("T203", f"tensor {names[0]} has rows of {recipe.type.sizes[-1]} values, {b.family} needs {want[-1]} here",
                        loc, why=f"a row of {part} is not a whole number of blocks", hint=hint)
    b.values |= {names[0]: recipe.type.count, names[1]: 0}
    return recipe
