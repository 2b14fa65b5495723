"""One changed value for every config key that a family reads: what must move the logits or be refused."""
from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tiny_models import Config

from uaii.frontend.blocks import ActKey
from uaii.frontend.config import COUNT, FLAG, LAYERS, LENGTH, NUMBER, POSITIVE, SIZE, Entry, Key
from uaii.frontend.config import Config as ConfigClass
from uaii.frontend.family import Family
from uaii.frontend.layer_rope import LayerRopeKeys
from uaii.frontend.rope import RopeKeys
from uaii.frontend.window import WindowKeys

ORIGINAL = "original_max_position_embeddings"
YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 32}
# What a rotation for all layers reads, as {key: (changes that make it matter, other value)}.
ROPE: dict[str, tuple[Config, Any]] = {
    "rope_theta": ({}, 5e5), "rope_scaling": ({}, {"type": "linear", "factor": 4.0}),
    "rope_parameters": ({}, {"rope_type": "linear", "factor": 4.0}), ORIGINAL: ({"rope_scaling": YARN}, 64),
}
LAYER_ROPE: dict[str, Any] = {
    "rope_scaling": {"rope_type": "linear", "factor": 4.0}, ORIGINAL: 64,
    "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 3e5}},
}


@dataclass(frozen=True)
class Mutation:
    """`key` gets `value` in a config that has the `before` changes first."""

    key: str
    before: Config
    value: Any


def entries(config: type[ConfigClass]) -> list[Entry]:
    """What a family's configuration declares; a redefinition replaces, None removes."""
    found: dict[str, Any] = {}
    for klass in reversed(config.__mro__):
        found |= {name: value for name, value in vars(klass).items() if isinstance(value, Entry) or name in found}
    return [e for e in found.values() if isinstance(e, Entry)]


def keys(family: Family) -> list[str]:
    """Every Hugging Face key that a family reads, in the order of its declaration."""
    return list(dict.fromkeys(name for entry in entries(family.config) for name in entry.keys("hf")))


def mutation(family: Family, cases: ModuleType, key: str) -> Mutation:
    """The cases' own where MUTATIONS states one, else by the key's kind; KeyError for a key that has neither."""
    own = getattr(cases, "MUTATIONS", {})
    entry = next(e for e in entries(family.config) if key in e.keys("hf"))
    return Mutation(key, *(own[key] if key in own else _by_kind(entry, key, cases.CASES[0].config)))


def _by_kind(entry: Entry, name: str, config: Config) -> tuple[Config, Any]:
    if isinstance(entry, RopeKeys):
        return ROPE.get(name, ({}, 5e5))
    if isinstance(entry, ActKey):
        return {}, "relu" if config.get(name) != "relu" else "silu"
    if isinstance(entry, WindowKeys):
        return _window(entry, name, config)
    if isinstance(entry, LayerRopeKeys):
        return {}, LAYER_ROPE.get(name, 5e5)
    if name == "tie_word_embeddings":
        return {name: True}, False
    if not isinstance(entry, Key):
        raise KeyError(f"{name}: state a value in MUTATIONS")
    default = entry.default if isinstance(entry.default, int | float) else 4
    now = config.get(name) if config.get(name) is not None else default
    if entry.kind is FLAG:
        return {}, not now
    if entry.kind in (SIZE, LAYERS, LENGTH, COUNT):
        return {}, 2 * now or 2
    if entry.kind in (POSITIVE, NUMBER):
        return {}, 3 * now + 0.5
    return {}, "something else"


def _window(entry: WindowKeys, name: str, config: Config) -> tuple[Config, Any]:
    """With a window of 8 on some of the layers: another width, no window, or other layers."""
    on: Config = {"sliding_window": 8} | ({entry.switch: True} if entry.switch else {})
    on |= {"max_window_layers": 1} if "max_window_layers" in entry.keys("hf") else {}
    if name == entry.switch:
        return on | {name: False}, True
    others = {"sliding_window": 3, "max_window_layers": 3, "layer_types": ["full_attention"] * config["num_hidden_layers"]}
    if name not in others:
        raise KeyError(f"{name}: state a value in MUTATIONS")
    return on, others[name]
