"""A folder's tensors under llama.cpp's names, where its converter does other things than llama's."""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from gguf_twin import Twin, as_it_is, fused_projections
from tiny_models import Arrays, Case, interleaved_rows

Names = Mapping[str, str]


def interleaved(case: Case, tensors: Arrays) -> Arrays:
    """The order of llama's q and k rows, which is wrong elsewhere."""
    counts = {"q_proj": case.config["num_attention_heads"], "k_proj": case.config["num_key_value_heads"]}
    parts = {n: n.split(".")[-2] for n in tensors}
    return {n: interleaved_rows(x, counts[parts[n]]) if parts[n] in counts else x for n, x in tensors.items()}


@dataclass(frozen=True)
class Converted(Twin):
    """A twin whose names follow `stem`, a pattern with the layer's number, or are `outside`; `changed` is what the
    converter did to the values, `broken` gives the values in a wrong order."""

    stem: str = r"model\.layers\.(\d+)\."
    outside: Names = field(default_factory=dict)
    changed: Callable[[Case], Arrays] = as_it_is
    broken: Callable[[Case, Arrays], Arrays] = interleaved

    def tensors(self, case: Case, *, permuted: bool | None = None, fused: bool = False) -> Arrays:
        values = self.broken(case, self.changed(case)) if permuted else self.changed(case)
        out: Arrays = {}
        for name, x in values.items():
            part, word = name.rsplit(".", 1)
            layer = re.fullmatch(rf"{self.stem}(.+)", part)
            out[f"blk.{layer[1]}.{self.names[layer[2]]}.{word}" if layer else f"{self.outside[part]}.{word}"] = x
        return fused_projections(out) if fused else out


def ungrouped(x: np.ndarray, groups: int, heads: int) -> np.ndarray:
    """Rows stored per group (its query heads, a key head, a value head) as all of q, then k, then v."""
    queries = heads // groups
    parts = x.reshape(groups, queries + 2, -1, *x.shape[1:])
    return np.concatenate([parts[:, a:b].reshape(-1, *x.shape[1:])
                           for a, b in ((0, queries), (queries, queries + 1), (queries + 1, queries + 2))])
