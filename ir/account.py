"""Reads are counted: a rule that consumes an op must have looked at all it says."""
from __future__ import annotations

from typing import Any, TypeVar, cast

from uaii.ir.core import Op
from uaii.ir.known import known

OpT = TypeVar("OpT", bound=Op)


class _Watch:
    """Stands for an op; notes which fields are read and hands attributes out with their origins."""

    def __init__(self, op: Op, read: set[str]) -> None:
        self._op, self._read = op, read

    def __getattr__(self, name: str) -> Any:
        self._read.add(name)
        value = getattr(self._op, name)
        return known(value, self._op.attr_locs[name]) if name in self._op.attr_locs else value


class Account:
    """What a rule has looked at, op by op."""

    def __init__(self) -> None:
        self._open: list[tuple[Op, set[str]]] = []

    def watch(self, op: OpT) -> OpT:
        read: set[str] = set()
        self._open.append((op, read))
        return cast(OpT, _Watch(op, read))

    def unread(self) -> list[tuple[Op, str]]:
        """(op, field) for every operand, and every attribute away from its default, that was never read."""
        return [(op, n) for op, read in self._open for n in (*op.operand_names, *op.attr_names)
                if n not in read and (v := getattr(op, n)) is not None and v != op.defaults[n]]
