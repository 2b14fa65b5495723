"""Mixtures of experts, as families share them: the usual names of tensors, and the routed MLP with its shared expert."""
from __future__ import annotations

from typing import Any

from uaii.frontend import blocks
from uaii.frontend.build import Build
from uaii.frontend.common import LAYER
from uaii.frontend.config import COUNT, SIZE, Config, Entry, key
from uaii.frontend.tensors import At, Flat, Where, where
from uaii.ir import loc as L
from uaii.ir import ops
from uaii.ir.core import Value
from uaii.ir.diag import Malformed
from uaii.ir.known import plain

# For the `inert` of a family with experts.
ROUTER_TRAINING = {"router_aux_loss_coef": "training", "router_jitter_noise": "training", "aux_loss_alpha": "training",
                   "seq_aux": "training", "output_router_logits": "what a call returns besides"}

# For the `inert` of an architecture whose weighting of experts is fixed in llama.cpp.
WEIGHTING_IGNORED = {"expert_weights_norm": "llama.cpp does not read it for this architecture",
                     "expert_weights_scale": "llama.cpp does not read it for this architecture"}


class ExpertConfig(Config):
    """A configuration with entries `experts`, `experts_used` and `act`; llama.cpp knows groups of experts everywhere."""

    groups: int = key((), "expert_group_count", COUNT, default=0)
    groups_used: int = key((), "expert_group_used_count", COUNT, default=0)

    def check(self) -> None:
        super().check()
        experts, used, groups, kept = (int(plain(getattr(self, n))) for n in ("experts", "experts_used", "groups", "groups_used"))
        names = self.declared()["experts_used"].keys(self.fmt)
        if names:
            name = next((n for n in names if self.has(n)), names[0])
            self.need(0 < used <= experts if experts else used == 0, name, f"there are {experts} experts")
        self.need(groups == 0 or groups < experts and experts % groups == 0, "expert_group_count", f"there are {experts} experts")
        self.need(groups < 2 or 0 < kept < groups and used <= experts // groups * kept, "expert_group_used_count",
                  f"there are {groups} groups of {experts} experts, {used} for each token")
        self.need(not experts or getattr(self, "act") == "silu", "hidden_act", "the experts compute with silu")  # noqa: B009


class SparseLayers(Entry):
    """Per layer whether its MLP is experts: every `decoder_sparse_step`-th layer, but for `mlp_only_layers`; in a GGUF all.

    Source: transformers modeling_qwen2_moe.py, modeling_qwen3_moe.py; llama.cpp knows neither key.
    """

    STEP, DENSE = "decoder_sparse_step", "mlp_only_layers"

    def keys(self, fmt: str) -> tuple[str, ...]:
        return (self.STEP, self.DENSE) if fmt == "hf" else ()

    def read(self, c: Config) -> tuple[bool, ...]:
        count = int(plain(c.__dict__["layers"]))
        if c.fmt == "gguf":
            return (True,) * count
        step = SIZE.check(c.raw(self.STEP), self.STEP, c) if c.has(self.STEP) else 1
        dense = [] if c.raw(self.DENSE) is None else c.raw(self.DENSE)
        if not isinstance(dense, list) or not all(COUNT.fits(n) and n < count for n in dense):
            raise Malformed("F104", f"{self.DENSE} must list layers from 0 to {count - 1}", L.join(c.at(self.DENSE)))
        return tuple((i + 1) % step == 0 and i not in dense for i in range(count))


def grouping(c: ExpertConfig) -> dict[str, Any]:
    """How the experts of a GGUF stand in groups: a group's score is that of its two best, as llama.cpp has it."""
    count, used = c.groups, c.groups_used
    return {"groups": count, "groups_used": used, "group_score": "top2"} if count > 1 else {}


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


def shared_score(hf: str) -> dict[str, Where]:
    """The row that weighs the shared expert, one-dimensional in a GGUF."""
    return {"shared.score": where(f"{LAYER}{hf}.weight", At("blk.{i}.ffn_gate_inp_shexp.weight", (Flat(),)))}


def mixture(b: Build, c: Any, x: Value, i: int, width: int, *, bias: bool = False, correction: bool = False,
            **routed: Any) -> Value:
    """The outputs of the experts that each token chose, weighted; `width` is an expert's, `routed` see ops.Routed.

    With `bias` the router and the experts have one, with `correction` the choice (not the weights) is corrected.
    """
    n, features = c.experts, int(x.type.shape[-1])
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


def gated_shared(b: Build, x: Value, i: int, width: int, act: str) -> Value:
    """The shared expert's gated MLP times one number for each token, between 0 and 1."""
    score = b.linear(x, "shared.score", 1, i)
    y = shared_mlp(b, x, i, width, act)
    with b.scope("shared/gate"):
        return ops.RowGate(y, score).out


def feed_forward(b: Build, c: Any, x: Value, i: int, widths: tuple[int, int], bias: Any = None, *, sparse: bool,
                 **routed: Any) -> Value:
    """The layer's MLP: routed experts, or one gated MLP where the layer is not `sparse`; `widths` are the MLP's, an expert's."""
    if sparse:
        return mixture(b, c, x, i, widths[1], **grouping(c), **routed)
    return blocks.gated_mlp(b, x, i, widths[0], c.act, bias)
