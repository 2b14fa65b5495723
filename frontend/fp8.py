"""FP8 weights as DeepSeek and Kimi publish them: E4M3 codes, and a factor for each block of rows and columns."""
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from uaii.ir import loc as L
from uaii.ir.diag import Malformed
from uaii.ir.recipe import Recipe, make
from uaii.ir.types import FLOATS, FP8

if TYPE_CHECKING:
    from uaii.frontend.build import Build

SCALE = "_scale_inv"  # of the name of a tensor's factors
NOTE = "FP8 weights become f32, each code times the factor of its block; activations stay f32, whatever activation_scheme says"
# Entries of quantization_config that are read or that the tensors say themselves, and what each may be.
ENTRIES: dict[str, Any] = {
    "quant_method": ("fp8",), "fmt": ("e4m3",), "activation_scheme": ("dynamic",), "scale_fmt": ("float", "ue8m0"),
    "weight_block_size": None, "modules_to_not_convert": None, "ignored_layers": None, "dequantize": (True, False)}


def fp8_block(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Rows and columns that share a factor, where `quantization_config` declares FP8 in the form that is read; else None."""
    said = config.get("quantization_config")
    if not isinstance(said, dict) or said.get("quant_method") != "fp8" or set(said) - set(ENTRIES):
        return None
    if any(legal and said[k] not in legal for k, legal in ENTRIES.items() if k in said):
        return None
    block = said.get("weight_block_size")
    if not isinstance(block, list) or len(block) != 2 or not all(type(n) is int and 0 < n <= 1 << 16 for n in block):
        return None
    return block[0], block[1]


def scaled(b: Build, name: str, block: tuple[int, int]) -> Recipe:
    """The f32 values of a stored FP8 tensor. Raises Malformed T201 (no factors), T203 (factors of another shape or type)."""
    codes, factors = b.ckpt.tensors[name], b.ckpt.tensors.get(name + SCALE)
    loc = L.Stored(codes.file.name, name)
    if factors is None:
        raise Malformed("T201", f"{b.family} needs a tensor that the checkpoint lacks: {name}{SCALE}", loc,
                        why=f"{name} is FP8, whose codes mean nothing without their factors",
                        hint="take the publisher's complete file; nothing is ever filled in")
    want = tuple(-(-n // size) for n, size in zip(codes.type.sizes, block, strict=False))
    if codes.type.rank != 2 or factors.type.shape != want or factors.type.elem not in FLOATS:
        raise Malformed("T203", f"tensor {factors.name} is {factors.type}, {b.family} needs floats {list(want)} here",
                        L.join(loc, L.Stored(factors.file.name, factors.name)),
                        why=f"{name} is {codes.type}, a factor for each block of {block[0]} x {block[1]}",
                        hint="check weight_block_size, or that the weights are this model's")
    if NOTE not in b.notes:
        b.notes.append(NOTE)
    return make(FP8, make("load", name, codes.type), make("load", factors.name, factors.type), *block)
