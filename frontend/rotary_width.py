"""How many features of each head rotate: all of them, or a stated share."""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from uaii.frontend.config import SIZE, Config, Entry, Kind
from uaii.ir.diag import Malformed
from uaii.ir.known import known, plain

FACTOR = "partial_rotary_factor"
SHARE = Kind("a number above 0 and up to 1",
             lambda v: isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) and 0 < v <= 1, float)


class RotaryWidth(Entry):
    """The rotated width, int(head_dim * share), or the head when the family knows no share.

    The share is `partial_rotary_factor` of the rope record, else the key `name`, else `default`. `restated` are keys
    that older writers add and transformers does not read: they must agree. A GGUF states the width itself.
    Source: transformers modeling_rope_utils.convert_rope_params_to_dict, configuration_gpt_neox.py.
    """

    GGUF = "rope.dimension_count"

    def __init__(self, default: float | None, key: str, restated: tuple[str, ...]) -> None:
        self.default, self.key, self.restated = default, key, restated

    def keys(self, fmt: str) -> tuple[str, ...]:
        return (self.GGUF,) if fmt == "gguf" else () if self.default is None else (self.key, *self.restated)

    def read(self, c: Config) -> Any:
        head = int(plain(c.__dict__["head_dim"]))
        if c.fmt == "gguf":
            width, name = SIZE.check(c.raw(self.GGUF), self.GGUF, c) if c.has(self.GGUF) else head, self.GGUF
        elif self.default is None:
            return c.__dict__["head_dim"]
        else:
            width, name = self._share(c, head, self.default)
        c.need(self.default is not None or width == head, name,
               f"rotates {width} of {head} features: {c.family} has no partial rotary")
        c.need(0 < width <= head and width % 2 == 0, name, f"cannot rotate {width} of {head} features")
        return known(width, c.at(name))

    def _share(self, c: Config, head: int, share: float) -> tuple[int, str]:
        """The width and the key that states it. Raises Malformed F108 where a restated share differs."""
        name = "rope_scaling" if c.raw("rope_scaling") else "rope_parameters"
        record = c.raw(name)
        if isinstance(record, Mapping) and FACTOR in record:
            share = SHARE.check(record[FACTOR], f"{name}.{FACTOR}", c)
        else:
            name = self.key
            share = SHARE.check(c.raw(name), name, c) if c.has(name) else share
        for other in self.restated:
            if c.has(other) and c.raw(other) != share:
                raise Malformed("F108", f"{other}={c.raw(other)} contradicts {name}, by which {share} of a head rotates",
                                c.at(other), hint="remove the spelling that is wrong")
        return int(head * share), name


def rotary_width(default: float | None = None, key: str = FACTOR, restated: tuple[str, ...] = ()) -> Any:
    """Declares the rotated width; it must follow `head_dim`. Without a `default` share the whole head rotates."""
    return RotaryWidth(default, key, restated)
