"""A temperature of attention that grows with the position, and the rotation that stands in one record with it."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uaii.frontend.config import LENGTH, NUMBER, POSITIVE, Config, Entry
from uaii.frontend.rope import FROM_ZERO, ORIGINAL, RopeKeys, given
from uaii.ir import loc as L
from uaii.ir.diag import Malformed
from uaii.ir.known import known, plain
from uaii.ir.ops import RopeScaling

BETA, LIMIT = "llama_4_scaling_beta", "max_position_embeddings"
GGUF_BETA, GGUF_ORIGINAL = "attention.temperature_scale", "rope.scaling.original_context_length"


@dataclass(frozen=True)
class Temperature:
    """Queries at position p are multiplied by 1 + beta * ln(1 + floor(p / length)); beta 0 is none."""

    beta: float
    length: int


class TemperatureKeys(Entry):
    """`llama_4_scaling_beta` of the rope record and its original context, or a GGUF's temperature_scale; it follows `rope`.

    A folder must state both, in a record or by its silence (`absent` is the record that no record means): transformers has
    no other default. Raises Malformed F102 for a record that lacks one, F108 for one that repeats another
    max_position_embeddings.
    """

    def __init__(self, absent: Mapping[str, Any]) -> None:
        self.absent = absent

    def keys(self, fmt: str) -> tuple[str, ...]:
        return (*RopeKeys.HF, LIMIT) if fmt == "hf" else (GGUF_BETA, GGUF_ORIGINAL)

    def read(self, c: Config) -> Temperature:
        rope = c.__dict__["rope"]
        if c.fmt == "gguf":
            beta = NUMBER.check(c.raw(GGUF_BETA), GGUF_BETA, c) if c.has(GGUF_BETA) else 0.0
            return Temperature(known(beta, c.at(GGUF_BETA)), known(rope.original, c.at(GGUF_ORIGINAL)))
        name, record = given(c, self.absent)
        scaled = dict(rope.scaling.params) if rope.scaling else {}
        stated = {**record, ORIGINAL: scaled.get(ORIGINAL, record.get(ORIGINAL))}
        for k in (BETA, ORIGINAL):
            if stated.get(k) is None:
                raise Malformed("F102", f"{name} lacks {k!r}", c.at(name),
                                why=f"the temperature of {c.family}'s attention needs it")
        limit = record.get(LIMIT)
        if limit is not None and limit != plain(c.__dict__["max_positions"]):
            raise Malformed("F108", f"{name}.{LIMIT}={limit} contradicts {LIMIT}", L.join(c.at(name), c.at(LIMIT)),
                            hint="remove the spelling that is wrong")
        return Temperature(known(NUMBER.check(stated[BETA], f"{name}.{BETA}", c), c.at(name)),
                           known(int(LENGTH.check(stated[ORIGINAL], f"{name}.{ORIGINAL}", c)), c.at(name)))


class TemperedRopeKeys(RopeKeys):
    """RopeKeys of a family with a temperature; in a GGUF llama.cpp reads YaRN's parameters from the file as well.

    Source: llama.cpp src/models/mistral3.cpp, llama-context.cpp (yarn_log_multiplier is mscale_all_dim, mscale is 1).
    """

    FAST, SLOW, LOG = (f"rope.scaling.yarn_{n}" for n in ("beta_fast", "beta_slow", "log_multiplier"))
    GGUF = (*RopeKeys.GGUF, FAST, SLOW, LOG)

    def _gguf_yarn(self, c: Config, original: int, factor: float) -> RopeScaling:
        more: dict[str, float] = {}
        for ours, name, kind in (("beta_fast", self.FAST, POSITIVE), ("beta_slow", self.SLOW, POSITIVE),
                                 ("mscale_all_dim", self.LOG, FROM_ZERO)):
            if c.has(name):
                more[ours] = plain(kind.check(c.raw(name), name, c))
        usual = super()._gguf_yarn(c, original, factor)
        return RopeScaling("yarn", (*usual.params, ("mscale", 1.0), *more.items()))


def tempered_rope_keys(theta: float, absent: Mapping[str, Any]) -> tuple[Any, Any]:
    """Declares (rope, temperature); they must follow `max_positions` and `rotary_dim`."""
    return TemperedRopeKeys(theta, also=(BETA, LIMIT, ORIGINAL), absent=absent), TemperatureKeys(absent)
