"""A graph from a configuration alone: the weights that its family would have, for a size plan and never for an artifact."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

from uaii.frontend.build import Build
from uaii.frontend.tensors import At
from uaii.ir import loc as L
from uaii.ir.core import Weight
from uaii.ir.known import plain
from uaii.ir.recipe import make
from uaii.ir.types import Tensor

STORED = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}  # transformers' names; a silent config means f32


class Supposed(Build):
    """Takes every weight that the configuration asks for to be there, in the type that it states."""

    def _elem(self) -> str:
        said = self.ckpt.metadata.get("dtype") or self.ckpt.metadata.get("torch_dtype")
        return STORED.get(str(said), "f32")

    def place_of(self, name: str, i: int | None = None) -> At | None:
        """The first place that the configuration allows: none for the head of a tied model, no pairs without a quantisation."""
        if name == "head" and self.c.__dict__.get("tied"):
            return None
        packed = self.ckpt.metadata.get("quantization_config") is not None
        places = [at for at in self.tensors[name].places(self.ckpt.format) if packed or at.pair is None]
        return replace(places[0], name=places[0].name.replace("{i}", str(i))) if places else None

    def stores(self, *names: str, i: int | None = None) -> bool:
        return False

    def optional(self, name: str, *shape: int, i: int | None = None, declared: Any = None) -> Weight | None:
        return self.weight(name, *shape, i=i) if declared else None

    def weight(self, name: str, *shape: int, i: int | None = None) -> Weight:
        label = name if i is None else f"{i}.{name}"
        if label in self.graph.weights:
            return self.graph.weights[label]
        want, at = tuple(int(plain(d)) for d in shape), self.place_of(name, i)
        there = want
        for undo in reversed(at.undo if at else ()):
            there = undo.stored(there, self.c)
        elem = "mxfp4" if at is not None and at.pair is not None else self._elem()
        names = at.names(self.c) if at is not None and at.pair is None else (label,)
        parts = [make("load", n, Tensor(elem, there[1:] if len(names) > 1 else there)) for n in names]
        recipe = make("stack", *parts) if len(parts) > 1 else parts[0]
        for undo in at.undo if at else ():
            recipe = undo.apply(recipe, want, self.c)
        made = Weight(recipe.type, label, recipe=recipe, loc=L.join(L.File(self.ckpt.config_file), self._site()))
        self.graph.weights[label] = made
        return made

    def close(self) -> None:
        """Nothing is there that could be left over."""
