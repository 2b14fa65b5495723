"""Rotary embedding settings in every spelling that checkpoints use, brought to one record."""
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uaii.frontend.config import FLAG, LENGTH, NUMBER, POSITIVE, REQUIRED, Config, Entry, Kind
from uaii.ir import loc as L
from uaii.ir.diag import Malformed, Unsupported
from uaii.ir.known import known, plain
from uaii.ir.ops import RopeScaling

BASE = Kind("a number above 1", lambda v: NUMBER.fits(v) and v > 1, float)
FROM_ZERO = Kind("a number from 0", lambda v: NUMBER.fits(v) and v >= 0, float)
FACTORS = Kind("a list of numbers above 0", lambda v: isinstance(v, list) and all(POSITIVE.fits(x) for x in v),
               lambda v: tuple(map(float, v)))
# kind -> its parameters: Kind of value, and the default (REQUIRED, or None for "absent means what the formula says").
ORIGINAL = "original_max_position_embeddings"
PARAMS: dict[str, dict[str, tuple[Kind, Any]]] = {
    "default": {},
    "linear": {"factor": (POSITIVE, REQUIRED)},
    "dynamic": {"factor": (POSITIVE, REQUIRED)},
    "llama3": {"factor": (POSITIVE, REQUIRED), "low_freq_factor": (POSITIVE, REQUIRED),
               "high_freq_factor": (POSITIVE, REQUIRED), ORIGINAL: (LENGTH, None)},
    "yarn": {"factor": (POSITIVE, None), ORIGINAL: (LENGTH, None),
             "beta_fast": (FROM_ZERO, None), "beta_slow": (FROM_ZERO, None), "attention_factor": (POSITIVE, None),
             "mscale": (FROM_ZERO, None), "mscale_all_dim": (FROM_ZERO, None), "truncate": (FLAG, True)},
    "longrope": {"short_factor": (FACTORS, REQUIRED), "long_factor": (FACTORS, REQUIRED), ORIGINAL: (LENGTH, None),
                 "factor": (POSITIVE, None), "attention_factor": (POSITIVE, None)},
}
# The word of a file -> the kind it means, in a family that says nothing else. transformers' generate carries one cache across
# the lengths of longrope in all families but Phi's, so only Phi declares it.
KINDS: Mapping[str, str] = {k: k for k in PARAMS if k != "longrope"}
GGUF_THETA = 10000.0  # llama.cpp's base for every architecture whose file has none
_ALWAYS = ("rope_type", "type", "rope_theta")
_KNOWN = {*_ALWAYS, *(k for params in PARAMS.values() for k in params)}


def given(c: Config, absent: Mapping[str, Any] | None = None) -> tuple[str, Mapping[str, Any]]:
    """The rope record of a config and the key it stands under; when neither spelling states one, empty, or the family's own
    `absent` where rope_parameters is not even an empty object.

    Raises Malformed F104 for what is no object, F108 when both spellings state one and they differ.
    """
    records = {n: c.raw(n) for n in ("rope_scaling", "rope_parameters") if c.raw(n) is not None}
    for name, record in records.items():
        if not isinstance(record, Mapping):
            raise Malformed("F104", f"{name} must be an object, is {json.dumps(record)[:80]}", c.at(name))
    stated = [(n, r) for n, r in records.items() if r]
    if len(stated) > 1 and stated[0][1] != stated[1][1]:
        raise Malformed("F108", "rope_scaling and rope_parameters contradict each other",
                        L.join(*(c.at(n) for n, _ in stated)), hint="remove the one that is wrong")
    if not stated and "rope_parameters" not in records and absent is not None:
        return "rope_parameters", absent
    return stated[0] if stated else ("rope_scaling", {})


@dataclass(frozen=True)
class Rope:
    """What a layer's rotation is: base, scaling record, magnitude of cos and sin, and where each was said.

    `original` is the length of a GGUF's context before scaling, to which its short factors hold if it stores some.
    """

    theta: float
    scaling: RopeScaling | None
    magnitude: float
    loc: L.Loc
    original: int = 0

    def reach(self, limit: int) -> int:
        """The longest sequence it is for, from max_position_embeddings `limit`, which some kinds state before scaling."""
        params: dict[str, Any] = dict(self.scaling.params) if self.scaling else {}
        match self.scaling.kind if self.scaling else "default":
            case "linear" | "dynamic":
                return max(limit, int(limit * params["factor"]))
            case "yarn":
                return max(limit, int(params[ORIGINAL] * params["factor"]))
            case _:
                return limit


class RopeKeys(Entry):
    """The keys of a family with one rotation for all layers, whose default base is `theta`.

    `base` is the key of the base outside the rope record, `also` keys of the record that another entry reads, `kinds` the
    words for a type that the family knows and what each means. `original` is what a silent top level means for the original
    context, where the family's class has a default that hides the record's own. `absent` is the record that no record means.

    Source: transformers modeling_rope_utils (v4 `rope_scaling`, v5 `rope_parameters`); llama.cpp llama-hparams for GGUF.
    """

    HF = ("rope_theta", "rope_scaling", "rope_parameters", ORIGINAL)  # rope_theta must agree where `base` is another key
    GGUF: tuple[str, ...] = (
        "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear",
        "rope.scaling.original_context_length", "rope.scaling.attn_factor")

    def __init__(self, theta: float, base: str | None = "rope_theta", also: tuple[str, ...] = (),
                 kinds: Mapping[str, str] = KINDS, original: int | None = None,
                 absent: Mapping[str, Any] | None = None) -> None:
        self.theta, self.base, self.also, self.kinds, self.original, self.absent = theta, base, also, kinds, original, absent

    def keys(self, fmt: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*((self.base,) if self.base else ()), *self.HF))) if fmt == "hf" else self.GGUF

    def read(self, c: Config) -> Rope:
        return self._hf(c) if c.fmt == "hf" else self._gguf(c)

    def _hf(self, c: Config) -> Rope:
        name, record = given(c, self.absent)
        if any(isinstance(v, Mapping) for k, v in record.items() if k not in _KNOWN):
            raise Unsupported("F109", f"{c.family} has one rotation for all layers; {name} states one per layer type",
                              c.at(name), hint="this checkpoint needs a family with per-layer rope")
        rope = self.stated(c, record, name)
        if c.has("rope_theta") and self.base != "rope_theta" and c.raw("rope_theta") != rope.theta:
            raise Malformed("F108", f"rope_theta={c.raw('rope_theta')} contradicts {self.base}, by which the base is "
                            f"{rope.theta}", L.join(c.at("rope_theta"), rope.loc), hint="remove the spelling that is wrong")
        return rope

    def stated(self, c: Config, record: Mapping[str, Any], name: str) -> Rope:
        """The rotation that a record under the key `name` states; its base may stand under the family's own key instead."""
        at, base = c.at(name), self.base
        kind = self._kind(c, record, name)
        theta_at = c.at(base) if base and "rope_theta" not in record else at
        theta = record.get("rope_theta", c.raw(base) if base and c.has(base) else self.theta)
        theta = known(BASE.check(theta, base or "rope_theta", c), theta_at)
        if strange := [k for k in record if k not in (*PARAMS[kind], *_ALWAYS, *self.also)]:
            raise Unsupported("F101", f"{name}.{strange[0]} is not a parameter of rope type {kind}", at,
                              why="a key nobody reads can change the model's meaning without a trace")
        return Rope(theta, self._scaling(c, kind, record, name), 1.0, L.join(at, theta_at))

    def _kind(self, c: Config, record: Mapping[str, Any], name: str) -> str:
        said = [record[k] for k in ("rope_type", "type") if record.get(k) is not None]
        if len({self.kinds.get(str(x), str(x)) for x in said}) > 1:
            raise Malformed("F108", f"{name} contradicts itself: rope_type={said[0]}, type={said[1]}", c.at(name),
                            hint="remove the spelling that is wrong")
        kind = said[0] if said else "default"
        if not isinstance(kind, str) or kind not in self.kinds:
            raise Unsupported("F111", f"unsupported rope_scaling.type={kind}", c.at(name),
                              why="the rotation of every key and query depends on it",
                              hint=f"known types: {', '.join(self.kinds)}")
        return self.kinds[kind]

    def _scaling(self, c: Config, kind: str, record: Mapping[str, Any], name: str) -> RopeScaling | None:
        if kind == "default":
            return None
        params: dict[str, Any] = {}
        for k, (legal, default) in PARAMS[kind].items():
            value = record.get(k) if k != ORIGINAL else self._original(c, record, name)
            if value is None and default is REQUIRED:
                raise Malformed("F102", f"{name} of type {kind} lacks {k!r}", c.at(name))
            if value is None:
                value = default
            if value is not None:
                params[k] = plain(legal.check(value, f"{name}.{k}", c))
        if kind == "llama3" and params["low_freq_factor"] >= params["high_freq_factor"]:
            raise Malformed("F108", f"{name} contradicts itself: low_freq_factor={params['low_freq_factor']} is not below "
                            f"high_freq_factor={params['high_freq_factor']}", c.at(name))
        limit = plain(c.__dict__["max_positions"])
        if kind == "dynamic":
            params["max_position_embeddings"] = limit
        elif ORIGINAL in PARAMS[kind]:
            params.setdefault(ORIGINAL, limit)
        if kind in ("yarn", "longrope"):
            params.setdefault("factor", limit / params[ORIGINAL])
        if kind == "longrope":
            self._check_factors(c, params, name)
        return RopeScaling(kind, tuple(params.items()))

    def _original(self, c: Config, record: Mapping[str, Any], name: str) -> Any:
        """The original context: transformers lets the top level win when it builds the model."""
        inside, outside = record.get(ORIGINAL), c.raw(ORIGINAL)
        if self.original is None:
            return inside if outside is None else outside
        meant = self.original if outside is None else outside
        if inside not in (None, meant):
            raise Malformed("F108", f"{name}.{ORIGINAL}={inside} contradicts {ORIGINAL}, which is {meant}"
                            f"{' when absent' if outside is None else ''} in {c.family}", L.join(c.at(name), c.at(ORIGINAL)),
                            hint=f"state the original context once, as {ORIGINAL} outside {name}")
        return meant

    @staticmethod
    def _check_factors(c: Config, params: Mapping[str, Any], name: str) -> None:
        pairs = int(plain(c.__dict__["rotary_dim"])) // 2
        for k in ("short_factor", "long_factor"):
            if len(params[k]) != pairs:
                raise Malformed("F108", f"{name}.{k} has {len(params[k])} factors, {pairs} pairs of each head are rotated",
                                c.at(name))
        if params[ORIGINAL] < 2:
            raise Malformed("F104", f"{ORIGINAL} must be at least 2 for longrope", L.join(c.at(name), c.at(ORIGINAL)))

    def _gguf(self, c: Config) -> Rope:
        theta = known(BASE.check(c.raw("rope.freq_base"), "rope.freq_base", c) if c.has("rope.freq_base")
                      else GGUF_THETA, c.at("rope.freq_base"))
        factor = next((c.raw(k) for k in ("rope.scaling.factor", "rope.scale_linear") if c.raw(k)), 1.0)
        factor = plain(POSITIVE.check(factor, "rope.scaling.factor", c))
        kind = c.raw("rope.scaling.type") or "linear"
        attn = c.raw("rope.scaling.attn_factor")
        magnitude = known(1.0 if attn is None else POSITIVE.check(attn, "rope.scaling.attn_factor", c),
                          c.at("rope.scaling.attn_factor"))
        loc = L.join(c.at("rope.freq_base"), c.at("rope.scaling.type"), c.at("rope.scaling.factor"))
        original = self._gguf_original(c)
        kind = "linear" if kind == "longrope" and "longrope" in self.kinds else kind  # its factors are tensors
        match kind:
            case "none":
                return Rope(theta, None, magnitude, loc, original)
            case "linear":
                scaling = RopeScaling("linear", (("factor", factor),)) if factor != 1.0 else None
                return Rope(theta, scaling, magnitude, loc, original)
            case "yarn":
                return Rope(theta, self._gguf_yarn(c, original, factor), magnitude, loc, original)
            case _:
                raise Unsupported("F111", f"unsupported rope_scaling.type={kind}", c.at("rope.scaling.type"),
                                  hint="known types in a GGUF: none, linear, yarn, and llama3 as a rope_freqs tensor")

    @staticmethod
    def _gguf_original(c: Config) -> int:
        original = c.raw("rope.scaling.original_context_length") or plain(c.__dict__["max_positions"])
        return int(LENGTH.check(original, "original_context_length", c))

    def _gguf_yarn(self, c: Config, original: int, factor: float) -> RopeScaling:
        """llama.cpp's YaRN for an architecture that reads no betas: 32 and 1, truncated range, magnitude 1 + 0.1 ln s."""
        return RopeScaling("yarn", (("factor", factor), (ORIGINAL, original), ("truncate", True)))


def rope_keys(theta: float, base: str = "rope_theta", also: tuple[str, ...] = (), kinds: Mapping[str, str] = KINDS,
              original: int | None = None, absent: Mapping[str, Any] | None = None) -> Any:
    """Declares the rotation of a family; it must follow `max_positions` and `rotary_dim`. See RopeKeys."""
    return RopeKeys(theta, base, also, kinds, original, absent)
