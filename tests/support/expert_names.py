"""Experts under the names of folders and of GGUF files: what families with experts share."""
from __future__ import annotations

import re
from typing import Any

import numpy as np
from gguf_twin import LLAMA_NAMES, sizes
from tiny_models import Arrays, Case, Config, Shape

PARTS = ("gate_proj", "up_proj", "down_proj")
NAMES = {**{n: theirs for n, theirs in LLAMA_NAMES.items() if not n.startswith("mlp.")}, "mlp.gate": "ffn_gate_inp",
         **{f"mlp.experts.{p}": f"ffn_{p.removesuffix('_proj')}_exps" for p in PARTS}}
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")


def mlp_shapes(stem: str, width: int, inner: int, names: tuple[str, str, str] = PARTS) -> dict[str, Shape]:
    """A gated MLP's tensors; `stem` comes before their names."""
    return {f"{stem}.{n}.weight": (width, inner) if n == names[2] else (inner, width) for n in names}


def with_experts(dense: dict[str, Shape], layer: str, width: int, inner: int, experts: int, *, block: str = "mlp",
                 names: tuple[str, str, str] = PARTS) -> dict[str, Shape]:
    """The tensors of a decoder whose MLP in the layer `layer` ("model.layers.0.") is a router and its experts."""
    out = {n: s for n, s in dense.items() if not n.startswith(f"{layer}mlp.")} | {f"{layer}{block}.gate.weight": (experts, width)}
    for j in range(experts):
        out |= mlp_shapes(f"{layer}{block}.experts.{j}", width, inner, names)
    return out


def stacked(case: Case) -> Arrays:
    """The folder's tensors, each kind of expert as one."""
    out: Arrays = {}
    runs: dict[str, list[np.ndarray]] = {}
    for name, x in case.tensors().items():
        if found := EXPERT.fullmatch(name):
            runs.setdefault(f"{found[1]}.{found[3]}", []).append(x)
        else:
            out[name] = x
    return out | {name: np.stack(parts) for name, parts in runs.items()}


def expert_keys(c: Config, count: str = "num_experts") -> dict[str, Any]:
    """The keys of a decoder with experts, without the architecture's prefix."""
    return sizes(c) | {"expert_count": c[count], "expert_used_count": c["num_experts_per_tok"]}
