"""Rotations that differ between the full and the sliding layers of a model."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uaii.frontend.config import POSITIVE, Config, Entry
from uaii.frontend.rope import PARAMS, Rope, RopeKeys
from uaii.frontend.window import LAYER_TYPES
from uaii.ir import loc as L
from uaii.ir.diag import Malformed, Unsupported
from uaii.ir.known import known

NESTED, ORIGINAL, SWA_BASE = "rope_parameters", "original_max_position_embeddings", "rope.freq_base_swa"
FLAT = {"rope_theta", "rope_type", "type", *(k for params in PARAMS.values() for k in params)}


@dataclass(frozen=True)
class LayerRope:
    """How one type of layer is rotated where rope_parameters does not say.

    `theta` is the family's base, `base` the key that may state another, `scaling` the key that may hold a scaling record.
    """

    theta: float
    base: str | None = None
    scaling: str | None = None


class LayerRopeKeys(Entry):
    """Per layer its rotation: `sliding` for layers that have a window, `full` for the others.

    A folder states them as one record per layer type in rope_parameters, or under the flat keys of each LayerRope. In a
    GGUF the full layers have every key of RopeKeys; sliding layers only a base of their own (`gguf_sliding` when absent,
    None for that of the full layers), not the scaling, as llama.cpp computes them.
    Source: transformers configuration_gemma3.py, configuration_olmo3.py (convert_rope_params_to_dict).
    """

    def __init__(self, full: LayerRope, sliding: LayerRope, gguf_sliding: float | None) -> None:
        self.types = {"full_attention": full, "sliding_attention": sliding}
        self.gguf_full, self.gguf_sliding = RopeKeys(full.theta), gguf_sliding

    def keys(self, fmt: str) -> tuple[str, ...]:
        if fmt == "gguf":
            return (*self.gguf_full.keys(fmt), SWA_BASE)
        flat = (k for t in self.types.values() for k in (t.base, t.scaling) if k)
        return (*dict.fromkeys(flat), NESTED, ORIGINAL)

    def read(self, c: Config) -> tuple[Rope, ...]:
        full, sliding = self._gguf(c) if c.fmt == "gguf" else self._hf(c)
        return tuple(sliding if width else full for width in c.__dict__["windows"])

    def _gguf(self, c: Config) -> tuple[Rope, Rope]:
        full = self.gguf_full.read(c)
        said = c.raw(SWA_BASE) if c.has(SWA_BASE) else self.gguf_sliding
        theta = full.theta if said is None else known(POSITIVE.check(said, SWA_BASE, c), c.at(SWA_BASE))
        return full, Rope(theta, None, full.magnitude, L.join(full.loc, c.at(SWA_BASE)))

    def _hf(self, c: Config) -> tuple[Rope, Rope]:
        if c.raw(ORIGINAL) is not None:
            raise Malformed("F108", f"{ORIGINAL} stands outside {NESTED}, where nothing reads it in {c.family}", c.at(ORIGINAL),
                            hint=f"put it into the record of the layers that it is for, or remove it: {_example()}")
        nested = self._nested(c)
        full, sliding = (self._one(c, name, t, nested.get(name) or {}) for name, t in self.types.items())
        return full, sliding

    @staticmethod
    def _nested(c: Config) -> Mapping[str, Any]:
        records = c.raw(NESTED) if c.raw(NESTED) is not None else {}
        if not isinstance(records, Mapping):
            raise Malformed("F104", f"{NESTED} must be an object, is {records!r}", c.at(NESTED))
        if flat := [k for k in records if k in FLAT]:
            raise Malformed("F108", f"{NESTED} states {flat[0]} for all layers, but {c.family} rotates full and sliding layers "
                            "differently", c.at(NESTED), why="the reference implementation ignores it and uses its defaults",
                            hint=f"state one record per layer type: {_example()}")
        if strange := [k for k in records if k not in LAYER_TYPES]:
            raise Unsupported("F103", f"unsupported {NESTED}.{strange[0]}", c.at(NESTED), hint=f"known: {', '.join(LAYER_TYPES)}")
        if odd := [k for k, v in records.items() if not isinstance(v, Mapping | None)]:
            raise Malformed("F104", f"{NESTED}.{odd[0]} must be an object, is {records[odd[0]]!r}", c.at(NESTED))
        return records

    @staticmethod
    def _one(c: Config, kind: str, t: LayerRope, record: Mapping[str, Any]) -> Rope:
        flat = c.raw(t.scaling) if t.scaling else None
        if t.scaling is None or not flat:
            return RopeKeys(t.theta, t.base).stated(c, record, NESTED if record else t.scaling or NESTED)
        if not isinstance(flat, Mapping):
            raise Malformed("F104", f"{t.scaling} must be an object, is {flat!r}", c.at(t.scaling))
        if record:
            raise Malformed("F108", f"{t.scaling} and {NESTED}.{kind} both state the rotation of the same layers",
                            L.join(c.at(t.scaling), c.at(NESTED)), hint="remove the one that is wrong")
        if flat.get("rope_type") is None:
            raise Malformed("F108", f"{t.scaling} has no rope_type", c.at(t.scaling),
                            why=f"the reference implementation of {c.family} does not read the older spelling `type` and "
                            "leaves the rotation unscaled", hint="say rope_type, or remove the record")
        return RopeKeys(t.theta, t.base).stated(c, flat, t.scaling)


def _example() -> str:
    return f'"{NESTED}": {{"full_attention": {{...}}, "sliding_attention": {{...}}}}'


def layer_ropes(full: LayerRope, sliding: LayerRope, *, gguf_sliding: float | None = None) -> Any:
    """Declares the rotations of a family whose layer types differ; it must follow `max_positions` and `windows`."""
    return LayerRopeKeys(full, sliding, gguf_sliding)
