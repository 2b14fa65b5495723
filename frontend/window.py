"""Sliding windows: which layers have one and how wide it is, whatever keys a family says it with."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uaii.frontend.config import SIZE, Config, Entry
from uaii.ir import loc as L
from uaii.ir.diag import Malformed, Unsupported
from uaii.ir.known import known, plain

LAYER_TYPES = {"full_attention": False, "sliding_attention": True}


class WindowKeys(Entry):
    """Per layer the window in tokens, 0 for full attention.

    `slides(c, i)` is the family's rule for layer i; a `layer_types` list in the configuration overrides it. `keys` are
    further keys that the rule reads through `c.raw`. `absent` is the width when `sliding_window` is not given: 0 is
    none. A query at i sees the keys j with i - window < j <= i, as in transformers.
    """

    def __init__(self, slides: Callable[[Config, int], bool], hf: tuple[str, ...], gguf: tuple[str, ...], absent: int,
                 layer_types: bool) -> None:
        self.slides, self.absent, self.by_list = slides, absent, layer_types
        self.names = {"hf": ("sliding_window", *(("layer_types",) if layer_types else ()), *hf), "gguf": gguf}

    def keys(self, fmt: str) -> tuple[str, ...]:
        return self.names[fmt]

    def read(self, c: Config) -> tuple[int, ...]:
        name = "sliding_window" if c.fmt == "hf" else "attention.sliding_window"
        count = int(plain(c.__dict__["layers"]))
        if name not in self.keys(c.fmt):
            return (0,) * count
        said = c.raw(name) if c.has(name) else self.absent
        width = 0 if said in (None, 0) else SIZE.check(said, name, c)
        listed = self._listed(c, count)
        sliding = [listed[i] if listed else self.slides(c, i) for i in range(count)]
        if listed and any(listed) and not width:
            raise Malformed("F108", "layer_types has sliding layers, but there is no sliding_window", c.at("layer_types"))
        origin = L.join(*(c.at(k) for k in self.keys(c.fmt)))
        return tuple(known(width if slides else 0, origin) for slides in sliding)

    def _listed(self, c: Config, count: int) -> list[bool]:
        names = c.raw("layer_types") if self.by_list and c.fmt == "hf" else None
        if names is None:
            return []
        if not isinstance(names, list) or len(names) != count:
            raise Malformed("F104", f"layer_types must list {count} layers", c.at("layer_types"))
        if odd := [n for n in names if n not in LAYER_TYPES]:
            raise Unsupported("F103", f"unsupported layer_types={odd[0]}", c.at("layer_types"),
                              hint=f"known: {', '.join(LAYER_TYPES)}")
        return [LAYER_TYPES[n] for n in names]


def window_keys(slides: Callable[[Any, int], bool], *, hf: tuple[str, ...] = (), gguf: tuple[str, ...] = (), absent: int = 0,
                layer_types: bool = True) -> Any:
    """Declares the windows of a family; it must follow `layers`."""
    return WindowKeys(slides, hf, gguf, absent, layer_types)
