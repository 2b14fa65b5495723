"""The tensor types of ggml by number: name, block, and whether uaii loads them."""
from __future__ import annotations

from dataclasses import dataclass

from uaii.ir.types import BLOCKS, WIDTHS, Block

# ggml.h, enum ggml_type; the index is the number in the file.
NAMES = (
    "f32", "f16", "q4_0", "q4_1", "q4_2", "q4_3", "q5_0", "q5_1", "q8_0", "q8_1", "q2_k", "q3_k", "q4_k", "q5_k",
    "q6_k", "q8_k", "iq2_xxs", "iq2_xs", "iq3_xxs", "iq1_s", "iq4_nl", "iq3_s", "iq2_s", "iq4_xs", "i8", "i16",
    "i32", "i64", "f64", "iq1_m", "bf16", "q4_0_4_4", "q4_0_4_8", "q4_0_8_8", "tq1_0", "tq2_0", "iq4_nl_4_4",
    "iq4_nl_4_8", "iq4_nl_8_8", "mxfp4", "nvfp4", "q1_0", "q2_0",
)
# Types that a file may name and uaii does not load: their size still says where the file must end.
UNLOADED = {
    "q4_2": Block(16, 10), "q4_3": Block(16, 12), "q8_1": Block(32, 36), "q8_k": Block(256, 292), "i16": Block(1, 2),
    "nvfp4": Block(64, 36), "q1_0": Block(128, 18), "q2_0": Block(64, 18),
} | dict.fromkeys(("q4_0_4_4", "q4_0_4_8", "q4_0_8_8", "iq4_nl_4_4", "iq4_nl_4_8", "iq4_nl_8_8"), Block(32, 18))
REMOVED = ("q4_2", "q4_3", "q4_0_4_4", "q4_0_4_8", "q4_0_8_8", "iq4_nl_4_4", "iq4_nl_4_8", "iq4_nl_8_8")
ACTIVATIONS = ("q8_1", "q8_k")


@dataclass(frozen=True)
class GgmlType:
    """A storage type: `elem` names it in uaii.ir.types if it is loaded; `block` is None if ggml has no such number."""

    name: str
    elem: str | None
    block: Block | None

    @property
    def refusal(self) -> str:
        """Why it is not loaded, as the clause of a sentence."""
        elem = self.name.lower()
        if elem in REMOVED:
            return "was removed from ggml"
        if elem in ACTIVATIONS:
            return "is for activations, never for weights"
        return "is not loaded" if self.block else "is unknown"


def ggml_type(number: int) -> GgmlType:
    """The type a file calls by `number`."""
    if number >= len(NAMES):
        return GgmlType(f"number {number}", None, None)
    elem = NAMES[number]
    if elem in UNLOADED:
        return GgmlType(elem.upper(), None, UNLOADED[elem])
    return GgmlType(elem.upper(), elem, BLOCKS[elem] if elem in BLOCKS else Block(1, WIDTHS[elem]))
