"""Turns theta and rope_scaling into the frequencies they mean, or refuses to."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from uaii.ir.core import Value, Weight
from uaii.ir.diag import Unsupported
from uaii.ir.known import origin
from uaii.ir.ops import DynamicFreqs, LengthFreqs, Rope
from uaii.ir.recipe import Recipe, make
from uaii.passes.base import Answer, Pass, Rewrite

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
ORIGINAL = "original_max_position_embeddings"


@dataclass(frozen=True)
class FoldRope(Pass):
    """Every kind becomes a table of frequencies and a magnitude; `dynamic` becomes an op over the running length, and so does
    `longrope` where the artifact's `context` is longer than the original one.

    Source: transformers modeling_rope_utils; YaRN: Peng et al. 2023 (arXiv 2309.00071); LongRoPE: Ding et al. 2024
    (arXiv 2402.13753); llama.cpp llama-model.cpp, get_rope_factors.
    """

    context: int
    name = "fold-rope"
    why = "theta and rope_scaling fix every frequency, so the table is a constant"
    root = Rope

    def rule(self, op: Rope, rw: Rewrite) -> Answer:
        if op.freqs is not None:
            return None
        kind = op.scaling.kind if op.scaling else "default"
        params = dict(op.scaling.params) if op.scaling else {}
        if kind not in KINDS:
            raise Unsupported("P210", f"unsupported rope_scaling.type={kind}", rw.at,
                              hint=f"known types: {', '.join(KINDS)}")
        freqs, magnitude = self._frequencies(kind, params, op, rw)
        return Rope(op.x, op.positions, freqs, dim=op.dim, interleaved=op.interleaved,
                    magnitude=op.magnitude * magnitude).results

    def _frequencies(self, kind: str, params: dict[str, Any], op: Rope, rw: Rewrite) -> tuple[Value, float]:
        assert op.theta is not None
        if kind == "longrope":
            return self._longrope(params, op, rw)
        if kind == "dynamic":
            if op.divisors is not None:
                raise Unsupported("P211", "rope type dynamic cannot be combined with stored frequency divisors", rw.at)
            if op.dim <= 2:
                raise Unsupported("P211", f"rope type dynamic has no formula for {op.dim} rotated features", rw.at)
            return DynamicFreqs(op.positions, theta=op.theta, dim=op.dim, factor=params["factor"],
                                max_positions=params["max_position_embeddings"]).out, 1.0
        recipe, magnitude = FOLDS[kind](op.theta, op.dim, params)
        return _constant(op, recipe, op.divisors, rw), magnitude

    def _longrope(self, params: dict[str, Any], op: Rope, rw: Rewrite) -> tuple[Value, float]:
        """Factors of the record, short for a text within the original length and long for one beyond; factors stored as
        tensors are llama.cpp's, which takes one set for all texts by the context it runs with."""
        original, stored = params[ORIGINAL], (op.divisors, op.long_divisors)
        far, length = self.context > original, op.length
        says = f"the artifact's context of {self.context} tokens is {'longer than' if far else 'within'} the original {original}"
        if stored[far] is not None:
            rw.why = f"{says}: {'long' if far else 'short'} factors for every text, as llama.cpp takes them"
            return _constant(op, make("rope_freqs", op.theta, op.dim, "default"), stored[far], rw), 1.0
        short, long = (make("rope_freqs", op.theta, op.dim, "longrope", *params[f"{n}_factor"]) for n in ("short", "long"))
        if not far:
            rw.why = f"{says}: no text reaches the long factors"
            return _constant(op, short, None, rw), _longrope_magnitude(params)
        rw.why = f"{says}: each text's own length chooses"
        assert length is not None
        table = make("reshape", make("concat", short, long), (2, op.dim // 2))
        weight = rw.weight("rope.freqs", table, rw.at, origin(op.theta), op.attr_locs.get("scaling"))
        return LengthFreqs(op.positions, length, weight, limit=original).out, _longrope_magnitude(params)


def _constant(op: Rope, recipe: Recipe, divisors: Value | None, rw: Rewrite) -> Weight:
    of: list[Any] = [rw.at, origin(op.theta), op.attr_locs.get("scaling")]
    if isinstance(divisors, Weight):
        recipe = make("divide", recipe, make("cast", divisors.recipe, "f32"))
        of.append(divisors)
    return rw.weight("rope.freqs", recipe, *of)


def _longrope_magnitude(p: dict[str, Any]) -> float:
    """Of cos and sin, for short and long texts alike."""
    s: float = p["factor"]
    usual = 1.0 if s <= 1 else math.sqrt(1 + math.log(s) / math.log(p[ORIGINAL]))
    return float(p.get("attention_factor") or usual)


def _default(theta: float, dim: int, p: dict[str, Any]) -> tuple[Recipe, float]:
    return make("rope_freqs", theta, dim, "default"), 1.0


def _linear(theta: float, dim: int, p: dict[str, Any]) -> tuple[Recipe, float]:
    return make("rope_freqs", theta, dim, "linear", p["factor"]), 1.0


def _llama3(theta: float, dim: int, p: dict[str, Any]) -> tuple[Recipe, float]:
    order = ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL)
    return make("rope_freqs", theta, dim, "llama3", *(p[k] for k in order)), 1.0


def _yarn(theta: float, dim: int, p: dict[str, Any]) -> tuple[Recipe, float]:
    """The ramp between interpolated and extrapolated frequencies, and the magnitude of cos and sin (YaRN 3.2, 3.4)."""
    s, original = p["factor"], p[ORIGINAL]

    def pair_turning(turns: float) -> float:
        return dim * math.log(original / (2 * math.pi * turns)) / (2 * math.log(theta))

    low, high = pair_turning(p.get("beta_fast") or 32), pair_turning(p.get("beta_slow") or 1)
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)

    def magnitude(m: float) -> float:
        return 1.0 if s <= 1 else 0.1 * m * math.log(s) + 1.0

    both = p.get("mscale") and p.get("mscale_all_dim")
    usual = magnitude(p["mscale"]) / magnitude(p["mscale_all_dim"]) if both else magnitude(1.0)
    a = p.get("attention_factor") or usual
    return make("rope_freqs", theta, dim, "yarn", s, float(low), float(high + 0.001 if high == low else high)), a


FOLDS = {"default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn}
