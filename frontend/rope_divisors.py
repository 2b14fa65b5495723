"""Tensors of a GGUF that divide the frequencies of rope: bound, checked, and put into words."""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from uaii.frontend.llama3_divisors import recover
from uaii.frontend.rope import ORIGINAL, Rope
from uaii.ir import loc as L
from uaii.ir.core import Weight
from uaii.ir.diag import Malformed, Unsupported
from uaii.ir.known import plain
from uaii.ir.ops import RopeScaling

if TYPE_CHECKING:
    from uaii.frontend.build import Build

LONGROPE = "rope_short", "rope_long"  # a family's names for llama.cpp's rope_factors_short and rope_factors_long
Divided = tuple[Weight | None, Weight | None, RopeScaling | None]


def divided(b: Build, rope: Rope, dim: int) -> Divided:
    """(divisors, divisors for long texts, scaling): what the stored tensors make of a rotation.

    Raises Malformed F108 when the configuration scales too, T206 for a damaged tensor, Unsupported T204 for a type other than
    F32. Source: llama.cpp llama-model.cpp, get_rope_factors.
    """
    single = b.optional("rope_freqs", dim // 2) if "rope_freqs" in b.tensors else None
    both = any(n in b.tensors and b.place_of(n) is not None for n in LONGROPE)
    short, long = (b.weight(n, dim // 2) if both else None for n in LONGROPE)
    if rope.scaling is not None and (single is not None or both):
        raise Malformed("F108", f"the checkpoint scales rope twice: {rope.scaling.kind} and a tensor of divisors", rope.loc)
    if single is not None:
        _say_llama3(b, single, rope, dim)
    if short is None or long is None:
        return single, None, rope.scaling
    _say_longrope(b, (short, long), rope)
    return short, long, RopeScaling("longrope", ((ORIGINAL, rope.original),))


def _say_llama3(b: Build, divisors: Weight, rope: Rope, dim: int) -> None:
    """Says which llama3 scaling the stored divisors are; a tensor that is none is refused."""
    for name in divisors.recipe.loads if not b.llama3 else ():
        b.llama3 = recover(_values(b, name), plain(rope.theta), dim, _at(b, name))
        said = ", ".join(f"{k} {v:g}" for k, v in b.llama3.items())
        b.notes.append(f"rope_freqs is llama3 scaling with {said}")


def _say_longrope(b: Build, pair: tuple[Weight, Weight], rope: Rope) -> None:
    says = (f"the artifact's context chooses between rope_factors_short and rope_factors_long: long when it is longer than "
            f"{rope.original} tokens")
    names = [n for w in pair for n in w.recipe.loads]
    if says in b.notes or len(names) < 2:  # said, or a missing tensor that `close` reports
        return
    for name in names:
        x = _values(b, name)
        if not (np.isfinite(x) & (x > 0)).all():
            raise Malformed("T206", f"the factors in {name} are damaged: they must be finite and above 0", _at(b, name),
                            why="they scale every rotation; a wrong one degrades long texts in silence",
                            hint="take the file again from its publisher")
    b.notes.append(says)


def _values(b: Build, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    stored = b.ckpt.tensors[name]
    if stored.type.elem != "f32":
        raise Unsupported("T204", f"tensor {name} is {stored.type}: frequency divisors are read in F32 only", _at(b, name))
    values: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = np.asarray(b.ckpt.read(name), np.float32)
    return values


def _at(b: Build, name: str) -> L.Stored:
    return L.Stored(b.ckpt.tensors[name].file.name, name)
