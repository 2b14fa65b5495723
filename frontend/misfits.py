"""What a tensor that has no place says about its checkpoint: the clauses that make such an error useful."""
from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from uaii.ir.known import plain

Shape = tuple[int, ...]
# Tensor names that no dense family uses, and what they are.
STRANGERS = {
    r".*\.(scale|input_scale)": "scales of whole tensors (NVFP4), by which products are multiplied",
    r".*(_exps|_shexp|_chexps|ffn_gate_inp)\..*|.*\.experts\..*": "experts of a mixture of experts",
    r".*\.nextn\..*|.*\.mtp\..*": "a layer that predicts further tokens (MTP)",
    r".*\.(lora_a|lora_b)": "an adapter, which is no model by itself",
    r".*\.(post_attention_norm|post_ffw_norm)\..*": "norms after each half of a layer, as Gemma 2 and 3 have",
    r".*\.(attn_[qk]_norm|self_attn\.[qk]_norm)\..*": "norms of queries and keys, as Qwen 3 and Gemma 3 have",
    r"rope_factors_(long|short)\.weight": "longrope factors",
}
ATTENTION = re.compile(r"attn\.[qkvo](\.bias)?")


def strangers(names: Sequence[str]) -> list[str]:
    """For each kind of tensor among `names` that is known elsewhere, what it is and its first name."""
    found = {what: next((n for n in names if re.fullmatch(pattern, n)), None) for pattern, what in STRANGERS.items()}
    return [f"{name} and its like are {what}" for what, name in found.items() if name]


def head_widths(c: Any, part: str, want: Shape, have: Shape) -> str:
    """The width of a head by the configuration and by an attention tensor that does not fit it; empty for other tensors.

    `part` is the family's name of the weight, `want` and `have` the shapes [rows, columns] as stored.
    """
    width = int(plain(c.__dict__.get("head_dim") or 0))
    if not ATTENTION.fullmatch(part) or not width or len(want) != len(have):
        return ""
    axis = 1 if part == "attn.o" and len(want) > 1 else 0
    heads, odd = divmod(want[axis], width)
    if odd or have[axis] % heads or want[axis] == have[axis]:
        return ""
    return f"by the configuration a head is {width} wide, by this tensor {have[axis] // heads}"
