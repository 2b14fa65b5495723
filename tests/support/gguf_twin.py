"""A tiny checkpoint as llama.cpp's converter writes it: names, keys, and q and k rows in its order."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from family_cases.llama import GGUF_NAMES as LLAMA_NAMES
from family_cases.llama import GGUF_OUTSIDE
from tiny_models import Arrays, Case, Config, interleaved_rows, write_gguf

__all__ = ["LLAMA_NAMES", "Twin", "as_it_is", "sizes"]


def as_it_is(case: Case) -> Arrays:
    """The folder's tensors."""
    return case.tensors()


@dataclass(frozen=True)
class Twin:
    """How a family is written: its architecture, tensor names, keys, whether q and k rows are interleaved, endings of
    tensors that a file may leave out, what is added to every norm, what the converter did to the folder's tensors before
    it named them, and keys that it writes for readers which this file does not need."""

    arch: str
    names: Mapping[str, str]
    metadata: Callable[[Config], dict[str, Any]]
    permuted: bool
    optional: tuple[str, ...] = ()
    norm_offset: float = 0.0
    changed: Callable[[Case], Arrays] = as_it_is
    spare: tuple[str, ...] = ()

    def tensors(self, case: Case, *, permuted: bool | None = None, fused: bool = False) -> Arrays:
        """The case's tensors by llama.cpp's names; `permuted` other than the converter's is a broken file."""
        c, out = case.config, {}
        heads = {"attn_q": c["num_attention_heads"], "attn_k": c["num_key_value_heads"]}
        for name, x in self.changed(case).items():
            x = x + np.float32(self.norm_offset) if name.endswith("norm.weight") else x
            if name in GGUF_OUTSIDE:
                out[GGUF_OUTSIDE[name]] = x
                continue
            _, _, i, inner = name.split(".", 3)
            part, kind = inner.rsplit(".", 1)
            theirs = self.names[part]
            moved = (self.permuted if permuted is None else permuted) and theirs in heads
            out[f"blk.{i}.{theirs}.{kind}"] = interleaved_rows(x, heads[theirs]) if moved else x
        return fused_projections(out) if fused else out

    def keys(self, case: Case, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The case's keys without the prefix; `changes` replace its own, None removes one."""
        none = {"tokenizer.ggml.model": "none", "vocab_size": case.config["vocab_size"]}
        return {k: v for k, v in (none | self.metadata(case.config) | dict(changes)).items() if v is not None}

    def write(self, path: Path, case: Case, tensors: Arrays | None = None, **changes: Any) -> Path:
        """The case's file in the folder `path`; for `changes` see keys."""
        path.mkdir(parents=True, exist_ok=True)
        return write_gguf(path / "model.gguf", self.arch, self.keys(case, changes),
                          self.tensors(case) if tensors is None else tensors)


def sizes(c: Config) -> dict[str, Any]:
    """The keys that every converted decoder has, without the architecture's prefix."""
    d = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    return {"context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"],
            "block_count": c["num_hidden_layers"], "feed_forward_length": c["intermediate_size"],
            "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": c["num_key_value_heads"],
            "attention.layer_norm_rms_epsilon": float(c["rms_norm_eps"]), "rope.dimension_count": d,
            "attention.key_length": d, "attention.value_length": d, "rope.freq_base": float(c["rope_theta"])}


def fused_projections(tensors: Arrays) -> Arrays:
    """q, k and v as one tensor, as the converter's --fuse-qkv writes them."""
    parts = (".attn_q.", ".attn_k.", ".attn_v.")
    out = {n: x for n, x in tensors.items() if not any(p in n for p in parts)}
    for name in (n for n in tensors if parts[0] in n):
        out[name.replace(parts[0], ".attn_qkv.")] = np.concatenate([tensors[name.replace(parts[0], p)] for p in parts])
    return out
