"""What a target can run: rows of kernels with their limits. Backends fill the table; passes only ask it."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from uaii.ir.core import Op
from uaii.ir.types import INTS

CALL = 28_000.0  # about 3 us: an ONNX node over one row among many small ones (docs/architecture.md, "Capabilities")


@dataclass(frozen=True)
class Limit:
    """A condition beyond attribute values; `fits` sees the op, `says` completes "needs ..."."""

    says: str
    fits: Callable[[Any], bool]


@dataclass(frozen=True)
class Kernel:
    """One row: the op it implements, the kernel's name, legal float types and attribute values, and its relative cost.

    `attrs` maps an attribute to its legal values; an attribute that is not listed may have any value the op allows.
    What it takes to run is in the time of a multiply-add of f32 MatMul: `cost` for each of its own, `call` for being called.
    """

    op: type[Op]
    kernel: str
    floats: tuple[str, ...] = ("f32",)
    attrs: Mapping[str, tuple[Any, ...]] | None = None
    limits: tuple[Limit, ...] = ()
    cost: float = 1.0
    call: float = CALL
    proved: bool = True

    def takes(self, op: Op) -> float:
        """The time of `op` over one row of its input, in multiply-adds of f32 MatMul."""
        return self.call + self.cost * op.macs()

    def refuses(self, op: Op) -> str | None:
        """Why this row cannot run `op`, or None."""
        for v in (*op.operands, *op.results):
            if v.type.elem not in (*INTS, *self.floats):
                return f"{self.kernel} has no {v.type.elem} form"
        for name, legal in (self.attrs or {}).items():
            if getattr(op, name) not in legal:
                return f"{self.kernel} takes {name} in {{{', '.join(map(str, legal))}}}, not {getattr(op, name)}"
        return next((f"{self.kernel} needs {limit.says}" for limit in self.limits if not limit.fits(op)), None)


@dataclass(frozen=True)
class Target:
    """A device with its kernels."""

    name: str
    kernels: tuple[Kernel, ...]

    def refuses(self, op: Op) -> str | None:
        """Why no row runs `op`, or None when one does."""
        rows = [k for k in self.kernels if type(op) is k.op]
        if not rows:
            return f"{self.name} has no kernel for {op.name}"
        reasons = [k.refuses(op) for k in rows]
        return None if None in reasons else "; ".join(r for r in reasons if r is not None)

    def chosen(self, op: Op) -> Kernel | None:
        """The cheapest row that runs `op`."""
        able = (k for k in self.kernels if type(op) is k.op and k.refuses(op) is None)
        return min(able, key=lambda k: k.takes(op), default=None)

    def cost(self, op: Op) -> float:
        """What `op` takes over one row of its input where it is cheapest, see Kernel; infinite if nothing runs it."""
        row = self.chosen(op)
        return math.inf if row is None else row.takes(op)
