"""What rounding takes from stored tensors, counted while their blocks are written."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from uaii.backends.recipes import Source

Array = Any  # NumPy's own stubs widen to Any at every turn


@dataclass
class Loss:
    """Sums over the rounded values of a tensor: their number, their squares, the squares of the differences, and the largest
    difference."""

    count: int = 0
    squares: float = 0.0
    errors: float = 0.0
    largest: float = 0.0

    def add(self, values: Array, rounded: Array) -> None:
        """Counts f32 values and what they became."""
        x, off = values.ravel(), (rounded - values).ravel()
        self.count += x.size
        self.squares += float(np.dot(x, x))
        self.errors += float(np.dot(off, off))
        self.largest = max(self.largest, float(off.max(initial=0)), -float(off.min(initial=0)))

    def record(self) -> dict[str, float]:
        """Root mean square of the differences, and the largest one, both as parts of the values' root mean square."""
        size = (self.squares / self.count) ** 0.5 if self.count else 0.0
        rms = (self.errors / self.count) ** 0.5 if self.count else 0.0
        return {"rms": _digits(rms / size), "largest": _digits(self.largest / size)} if size else {"rms": 0.0, "largest": 0.0}


def _digits(x: float) -> float:
    return float(f"{x:.3g}")


@dataclass
class Counted:
    """A source that counts what is lost of its tensors, by name."""

    source: Source
    losses: dict[str, Loss] = field(default_factory=dict)

    def read(self, name: str) -> Any:
        return self.source.read(name)

    def note(self, names: Sequence[str], values: Array, rounded: Array) -> None:
        """The tensors that the values were computed from share what is lost of them."""
        for name in names:
            self.losses.setdefault(name, Loss()).add(values, rounded)
