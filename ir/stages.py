"""The three levels of a graph. Each op says in which of them it is legal."""
from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """`model` is what the checkpoint means, `core` has no configuration left to interpret, `ort` is kernels."""

    MODEL = "model"
    CORE = "core"
    ORT = "ort"
