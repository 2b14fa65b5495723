"""Mixtures of experts, as families share them: the usual names of tensors, and the routed MLP with its shared expert."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import LAYER
from uaii.frontend.tensors import At, Where, where
from uaii.ir import ops
from uaii.ir.core import Value
from uaii.ir.known import plain

# For the `inert` of a family with experts.
ROUTER_TRAINING = {"router_aux_loss_coef": "training", "router_jitter_noise": "training", "aux_loss_alpha": "training",
                   "seq_aux": "training", "output_router_logits": "what a call returns besides"}


def expert_names(hf: str = "mlp.experts.{j}.{}_proj", router: str = "mlp.gate",
                 parts: tuple[str, str, str] = ("gate", "up", "down")) -> dict[str, Where]:
    """Router and experts: a tensor for each expert in a folder ({j} is its number, {} one of `parts`), stacks in a GGUF.

    The configuration's entry `experts` is how many there are.
    """
    stacks = {f"moe.{ours}": where(At(LAYER + hf.replace("{}", theirs) + ".weight", stack="experts"),
                                   f"blk.{{i}}.ffn_{ours}_exps.weight")
              for ours, theirs in zip(("gate", "up", "down"), parts, strict=True)}
    return {"moe.router": where(f"{LAYER}{router}.weight", "blk.{i}.ffn_gate_inp.weight"), **stacks}


def shared_names(hf: str = "mlp.shared_experts") -> dict[str, Where]:
    """The expert that every token goes through."""
    return {f"shared.{n}": where(f"{LAYER}{hf}.{n}_proj.weight", f"blk.{{i}}.ffn_{n}_shexp.weight")
            for n in ("gate", "up", "down")}


def mixture(b: Build, c: Any, x: Value, i: int, width: int, *, bias: bool = False, correction: bool = False,
            **routed: Any) -> Value:
    """The outputs of the experts that each token chose, weighted; `width` is an expert's, `routed` see ops.Routed.

    With `bias` the router and the experts have one, with `correction` the choice (not the weights) is corrected.
    """
    n, features = int(plain(c.experts)), int(x.type.shape[-1])
    logits = b.linear(x, "moe.router", n, i, bias or None)
    with b.scope("moe"):
        gate, up = (b.weight(f"moe.{k}", n, width, features, i=i) for k in ("gate", "up"))
        down = b.weight("moe.down", n, features, width, i=i)
        moved = b.weight("moe.correction", n, i=i) if correction else None
        shifts = (b.weight("moe.gate.bias", n, width, i=i), b.weight("moe.up.bias", n, width, i=i),
                  b.weight("moe.down.bias", n, features, i=i)) if bias else (None, None, None)
        return ops.MixtureOfExperts(x, logits, gate, up, down, moved, *shifts, **routed).out


def shared_mlp(b: Build, x: Value, i: int, width: int, act: str) -> Value:
    """The shared expert's gated MLP."""
    gate, up = b.linear(x, "shared.gate", width, i), b.linear(x, "shared.up", width, i)
    with b.scope("shared/act"):
        h = ops.Gated(gate, up, act=act).out
    return b.linear(h, "shared.down", int(x.type.shape[-1]), i)


def feed_forward(b: Build, c: Any, x: Value, i: int, act: str, bias: Any = None, **routed: Any) -> Value:
    """The layer's MLP: routed experts where the configuration has some, else one gated MLP."""
    if plain(c.experts):
        return mixture(b, c, x, i, c.ffn, **routed)
    return blocks.gated_mlp(b, x, i, c.ffn, act, bias)
