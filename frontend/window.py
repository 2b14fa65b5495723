"""Sliding windows: which layers have one and how wide it is, whatever keys a family says it with."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uaii.frontend.config import COUNT, FLAG, SIZE, Config, Entry
from uaii.ir import loc as L
from uaii.ir.diag import Malformed, Unsupported
from uaii.ir.known import known, plain

PATTERN = "attention.sliding_window_pattern"
LAYER_TYPES = {"full_attention": False, "sliding_attention": True}


class WindowKeys(Entry):
    """Per layer the window in tokens, 0 for full attention.

    `slides(c, i)` is the family's rule for layer i; a `layer_types` list in the configuration overrides it, and so does
    a GGUF's sliding_window_pattern. `hf` and `gguf` are further keys that the rule reads through `c.raw`. `absent` is the
    width when `sliding_window` is not given, `gguf_absent` the same of a GGUF: 0 is none. `switch` names a flag, false
    when absent, without which there is no window at all. A query at i sees the keys j with i - window < j <= i, as in
    transformers.
    """

    def __init__(self, slides: Callable[[Config, int], bool], hf: tuple[str, ...], gguf: tuple[str, ...], absent: int,
                 gguf_absent: int, layer_types: bool, switch: str) -> None:
        self.slides, self.by_list, self.switch = slides, layer_types, switch
        self.absent = {"hf": absent, "gguf": gguf_absent}
        listed, switched = ("layer_types",) if layer_types else (), (switch,) if switch else ()
        self.names = {"hf": ("sliding_window", *listed, *switched, *hf), "gguf": gguf}

    def keys(self, fmt: str) -> tuple[str, ...]:
        return self.names[fmt]

    def read(self, c: Config) -> tuple[int, ...]:
        name = "sliding_window" if c.fmt == "hf" else "attention.sliding_window"
        count = int(plain(c.__dict__["layers"]))
        if name not in self.keys(c.fmt):
            return (0,) * count
        width = self._width(c, name)
        listed = self._listed(c, count) if c.fmt == "hf" else self._pattern(c, count)
        sliding = [listed[i] if listed else self.slides(c, i) for i in range(count)]
        if c.fmt == "hf" and any(listed) and not width:
            raise Malformed("F108", "layer_types has sliding layers, but there is no sliding_window",
                            L.join(*(c.at(k) for k in self.keys(c.fmt))))
        origin = L.join(*(c.at(k) for k in self.keys(c.fmt)))
        return tuple(known(width if slides else 0, origin) for slides in sliding)

    def _width(self, c: Config, name: str) -> int:
        on = not self.switch or c.fmt == "gguf" or (c.has(self.switch) and FLAG.check(c.raw(self.switch), self.switch, c))
        said = c.raw(name) if c.has(name) else self.absent[c.fmt] or None
        if said is None or not on or (said == 0 and c.fmt == "gguf"):
            return 0
        return int(SIZE.check(said, name, c))

    def _listed(self, c: Config, count: int) -> list[bool]:
        names = c.raw("layer_types") if self.by_list else None
        if names is None:
            return []
        if not isinstance(names, list) or len(names) != count:
            raise Malformed("F104", f"layer_types must list {count} layers", c.at("layer_types"))
        if odd := [n for n in names if n not in LAYER_TYPES]:
            raise Unsupported("F103", f"unsupported layer_types={odd[0]}", c.at("layer_types"),
                              hint=f"known: {', '.join(LAYER_TYPES)}")
        return [LAYER_TYPES[n] for n in names]

    def _pattern(self, c: Config, count: int) -> list[bool]:
        """A list with one flag per layer, or n: every n-th layer is full, 0 that none is."""
        said = c.raw(PATTERN) if PATTERN in self.keys("gguf") else None
        if isinstance(said, list) and len(said) == count and all(v in (0, 1) for v in said):
            return [bool(v) for v in said]
        if said is None or COUNT.fits(said):
            return [] if said is None else [said == 0 or i % said < said - 1 for i in range(count)]
        raise Malformed("F104", f"{PATTERN} must be a whole number or {count} flags", c.at(PATTERN))


def all_but_every(nth: int, *hf: str) -> Callable[[Config, int], bool]:
    """The rule by which every n-th layer is full and the rest slide: n is the first given key of `hf`, or `nth`."""
    def slides(c: Config, i: int) -> bool:
        name = next((k for k in hf if c.has(k)), None)
        return (i + 1) % (SIZE.check(c.raw(name), name, c) if name else nth) != 0
    return slides


def window_keys(slides: Callable[[Any, int], bool], *, hf: tuple[str, ...] = (), gguf: tuple[str, ...] = (), absent: int = 0,
                gguf_absent: int | None = None, layer_types: bool = True, switch: str = "") -> Any:
    """Declares the windows of a family; it must follow `layers`. `gguf_absent` is `absent` unless given."""
    return WindowKeys(slides, hf, gguf, absent, absent if gguf_absent is None else gguf_absent, layer_types, switch)
