"""Experts to the kernel that runs those a token chose, packed where it can read the file's blocks, and latent attention."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from uaii.ir.core import Value, Weight
from uaii.ir.ops import ExpertBranches, ExpertKernel, KeyLengths, LatentAttention, LatentGqa, MixtureOfExperts, TotalLength
from uaii.ir.ops.experts import routing
from uaii.ir.recipe import Recipe, make
from uaii.ir.target import Target
from uaii.ir.types import BLOCKS, FLOATS, PACKINGS
from uaii.passes.base import Answer, Pass, Rewrite, Why
from uaii.passes.pack_weights import fine, integers


@dataclass(frozen=True)
class PackExperts(Pass):
    """mixture_of_experts over blocks becomes the packed kernel over their integers and scales."""

    target: Target
    name = "pack-experts"
    why = "the blocks' integers and scales fit the expert kernel as they are"
    root = MixtureOfExperts

    def rule(self, op: MixtureOfExperts, rw: Rewrite) -> Answer:
        gate, up, down = op.gate, op.up, op.down
        if gate.type.elem in FLOATS and down.type.elem in FLOATS:
            return None
        if not (isinstance(gate, Weight) and isinstance(up, Weight) and isinstance(down, Weight)):
            return Why("the experts are computed at run time")
        if gate.type.elem != up.type.elem:
            return Why(f"gate is stored as {gate.type.elem}, up as {up.type.elem}")
        if loose := [w.type.elem for w in (gate, down) if w.type.elem not in PACKINGS]:
            return Why(f"{loose[0]} has no blocks")
        how = [PACKINGS[w.type.elem] for w in (gate, down)]
        if affine := [w.type.elem for w, p in zip((gate, down), how, strict=True) if p.affine]:
            return Why(f"{affine[0]} adds an offset to each block, which the kernel has no place for")
        bits, block = max(p.bits for p in how), min(p.size for p in how)
        fc1 = make("interleave", gate.recipe, up.recipe)
        stem, parts = stem_of(gate), []
        for name, recipe, of in (("fc1", fc1, (gate, up)), ("fc2", down.recipe, (down,))):
            parts.append(rw.weight(f"{stem}.{name}.quants", _flat(make("quants", recipe, bits)), *of))
            parts.append(rw.weight(f"{stem}.{name}.scales", fine("scales", recipe, block), *of))
        made = ExpertKernel(op.x, op.logits, parts[0], parts[2], parts[1], parts[3], op.correction, *biases(op, rw, stem),
                            bits=bits, block=block, int8_activations=True, **routing(op))
        refusal = self.target.refuses(made)
        return Why(refusal) if refusal else made.results


@dataclass(frozen=True)
class BranchExperts(Pass):
    """mixture_of_experts over blocks that the packed kernel does not hold becomes a branch for each expert."""

    target: Target
    name = "branch-experts"
    why = "blocks with offsets, or of several types, fit the products of a branch for each expert"
    root = MixtureOfExperts

    def rule(self, op: MixtureOfExperts, rw: Rewrite) -> Answer:
        gate, up, down = op.gate, op.up, op.down
        if not (isinstance(gate, Weight) and isinstance(up, Weight) and isinstance(down, Weight)):
            return Why("the experts are computed at run time")
        if loose := [w.type.elem for w in (gate, up, down) if w.type.elem not in PACKINGS]:
            return Why(f"{loose[0]} has no blocks")
        stem, made = stem_of(gate), dict[str, Any]()
        for name, number, parts in (("fc1", 1, (gate, up)), ("fc2", 2, (down,))):
            how = [PACKINGS[w.type.elem] for w in parts]
            bits, block = max(p.bits for p in how), min(p.size for p in how)
            for what in ("quants", "scales", "offsets"):
                if what == "offsets" and not any(p.affine for p in how):
                    continue
                rows = [integers(w.recipe, bits, block) if what == "quants" else fine(what, w.recipe, block) for w in parts]
                recipe = make("join", *rows) if len(rows) > 1 else rows[0]
                made[name if what == "quants" else f"{name}_{what}"] = rw.weight(f"{stem}.{name}.{what}", recipe, *parts)
            made |= {f"bits{number}": bits, f"block{number}": block}
        fc1_bias, fc2_bias = biases(op, rw, stem, "join")
        branches = ExpertBranches(op.x, op.logits, correction=op.correction, fc1_bias=fc1_bias, fc2_bias=fc2_bias,
                                  int8_activations=True, **made, **routing(op))
        refusal = self.target.refuses(branches)
        return Why(refusal) if refusal else branches.results


@dataclass(frozen=True)
class LowerExperts(Pass):
    """mixture_of_experts becomes the kernel over the f32 values of its experts."""

    name = "lower-experts"
    why = "the expert kernel runs only the experts that a token chose"
    root = MixtureOfExperts

    def rule(self, op: MixtureOfExperts, rw: Rewrite) -> Answer:
        gate, up, down = op.gate, op.up, op.down
        if not (isinstance(gate, Weight) and isinstance(up, Weight) and isinstance(down, Weight)):
            return Why("the experts are computed at run time")
        stem = stem_of(gate)
        fc1 = rw.weight(f"{stem}.fc1", make("interleave", f32(gate.recipe), f32(up.recipe)), gate, up)
        fc2 = rw.weight(f"{stem}.fc2", f32(down.recipe), down)
        return ExpertKernel(op.x, op.logits, fc1, fc2, None, None, op.correction, *biases(op, rw, stem), **routing(op)).results


@dataclass(frozen=True)
class LowerLatentAttention(Pass):
    """latent_attention becomes the attention kernel over latent rows; masking is by lengths, as the kernel counts them."""

    name = "lower-latent-attention"
    why = "keys and values of all heads stay one latent row for each token, which GroupQueryAttention appends and attends"
    root = LatentAttention

    def rule(self, op: LatentAttention, rw: Rewrite) -> Answer:
        lengths, total = KeyLengths(op.mask).out, TotalLength(op.mask).out
        k_up, v_up = (rw.weight(f"{w.name}.f32", f32(w.recipe), w) if isinstance(w, Weight) else w for w in (op.k_up, op.v_up))
        return LatentGqa(op.q_plain, op.q_turned, op.latent, op.k_turned, k_up, v_up, op.past, op.past_v, lengths, total,
                         scale=op.scale).results


def f32(recipe: Recipe) -> Recipe:
    """The recipe's values as f32."""
    elem = recipe.type.elem
    return make("dequant", recipe) if elem in BLOCKS else recipe if elem == "f32" else make("cast", recipe, "f32")


def _flat(quants: Recipe) -> Recipe:
    """[X,N,K/block,bytes] as [X,N,K*bits/8]."""
    n, rows, blocks, width = quants.type.sizes
    return make("reshape", quants, (n, rows, blocks * width))


def stem_of(gate: Weight) -> str:
    return gate.name.removesuffix(".gate")


def biases(op: MixtureOfExperts, rw: Rewrite, stem: str, how: str = "interleave") -> tuple[Value | None, Value | None]:
    """The biases of fc1 (in the order of its rows: interleave or join) and of fc2, f32."""
    gate, up, down = op.gate_bias, op.up_bias, op.down_bias
    fc1 = None
    if isinstance(gate, Weight) and isinstance(up, Weight):
        fc1 = rw.weight(f"{stem}.fc1.bias", make(how, f32(gate.recipe), f32(up.recipe)), gate, up)
    fc2 = rw.weight(f"{stem}.fc2.bias", f32(down.recipe), down) if isinstance(down, Weight) else None
    return fc1, fc2
