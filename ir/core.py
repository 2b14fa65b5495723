"""Values, operations, graphs. Ops are frozen; passes rebuild graphs instead of mutating them."""
from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, dataclass_transform, get_type_hints

from uaii.ir.diag import Internal
from uaii.ir.known import origin, plain
from uaii.ir.loc import Loc
from uaii.ir.recipe import Recipe
from uaii.ir.stages import Stage
from uaii.ir.types import Tensor

OPS: dict[str, type[Op]] = {}


@dataclass(eq=False)
class Value:
    """An SSA value: a graph input when `op` is None (and it is no Weight), else a result of `op`."""

    type: Tensor
    name: str = ""
    op: Op | None = field(default=None, repr=False)


@dataclass(eq=False)
class Input(Value):
    """A graph input; one with a default may be left out by the caller."""

    default: int | None = None


@dataclass(eq=False)
class Weight(Value):
    """Checkpoint data under a recipe, read and computed only at emission."""

    recipe: Recipe = field(default_factory=lambda: Recipe("none", ()))
    loc: Loc | None = None


@dataclass_transform(frozen_default=True, eq_default=False)
class Op:
    """An operation. A field typed Value is an operand, any other field an attribute.

    The declaration is the constructor, the grammar of the text form and the type-checker's signature. `infer` is the
    typing rule, run at construction and by the verifier. `stages` says where the op is legal.
    """

    name: ClassVar[str]
    stages: ClassVar[frozenset[Stage]]
    operand_names: ClassVar[tuple[str, ...]]
    attr_names: ClassVar[tuple[str, ...]]
    defaults: ClassVar[Mapping[str, Any]]
    results: ClassVar[tuple[Value, ...]]
    loc: ClassVar[Loc | None]
    attr_locs: ClassVar[Mapping[str, Loc]]

    def __init_subclass__(cls, name: str, stages: str = "model core ort") -> None:
        dataclass(frozen=True, eq=False, repr=False)(cls)
        hints = get_type_hints(cls)
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        cls.name = name
        cls.stages = frozenset(Stage(s) for s in stages.split())
        cls.operand_names = tuple(f.name for f in fields if hints[f.name] in (Value, Value | None))
        cls.attr_names = tuple(f.name for f in fields if f.name not in cls.operand_names)
        cls.defaults = {f.name: f.default for f in fields}
        if name in OPS:
            raise TypeError(f"operation {name!r} declared twice")
        OPS[name] = cls

    def __post_init__(self) -> None:
        scope = Builder.current
        locs = {n: loc for n in self.attr_names if (loc := origin(getattr(self, n))) is not None}
        for n in self.attr_names:
            object.__setattr__(self, n, plain(getattr(self, n)))
        object.__setattr__(self, "loc", scope.locate() if scope else None)
        object.__setattr__(self, "attr_locs", locs)
        object.__setattr__(self, "results", tuple(Value(t, op=self) for t in self.typed()))
        if scope is not None:
            scope.place(self)

    def __repr__(self) -> str:
        """Short: the operands' own ops are not printed, or a graph would be printed once per path through it."""
        return f"<{self.name} {', '.join(f'%{r.name}: {r.type}' for r in self.results)}>"

    def infer(self) -> Tensor | tuple[Tensor, ...]:
        """Result types; Internal V001 when operands and attributes do not fit."""
        raise NotImplementedError

    def typed(self) -> tuple[Tensor, ...]:
        """`infer` as a tuple; Internal V001 also for shapes that it could not even take apart."""
        try:
            return as_tuple(self.infer())
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            values = ", ".join(str(v.type) for v in self.operands)
            raise Internal("V001", f"{self.name}: does not apply to {values}", self.loc, notes=[str(error)]) from error

    def macs(self) -> int:
        """Multiply-adds with stored numbers for one row of its input; 0 where the call itself is what costs."""
        return 0

    @property
    def out(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    @property
    def operands(self) -> tuple[Value, ...]:
        return tuple(v for n in self.operand_names if (v := getattr(self, n)) is not None)

    @property
    def attrs(self) -> dict[str, Any]:
        return {n: getattr(self, n) for n in self.attr_names}

    def need(self, fits: bool, says: str) -> None:
        if not fits:
            values = ", ".join(f"%{v.name or '?'}: {v.type}" for v in self.operands)
            raise Internal("V001", f"{self.name}: {says}", self.loc, notes=[values] if values else [])


@dataclass
class Graph:
    """A function from inputs to outputs: weights under recipes, then ops in SSA order."""

    name: str
    stage: Stage
    inputs: list[Input]
    weights: dict[str, Weight]
    dims: dict[str, str] = field(default_factory=dict)  # symbolic dimension -> its meaning in others, or ""
    ops: list[Op] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    output_names: list[str] = field(default_factory=list)

    def verify(self) -> None:
        """SSA order, types as inferred now, declared dimensions, stage-legal ops, recipes that yield their weight's
        type, and an origin for every op and weight. Raises Internal V0xx."""
        seen: set[int] = {id(v) for v in (*self.inputs, *self.weights.values())}
        for w in self.weights.values():
            if w.recipe.type != w.type:
                raise Internal("V003", f"@{w.name} is {w.type}, its recipe yields {w.recipe.type}", w.loc)
            if w.loc is None:
                raise Internal("V004", f"@{w.name} has no origin")
        for op in self.ops:
            if self.stage not in op.stages:
                raise Internal("V005", f"{op.name} is not an operation of the {self.stage} stage", op.loc)
            for v in op.operands:
                op.need(id(v) in seen, f"operand {v.name or '?'} is used before it is defined")
            op.need(tuple(r.type for r in op.results) == op.typed(), "result types are stale")
            if op.loc is None:
                raise Internal("V004", f"{op.name} has no origin")
            for r in op.results:
                if loose := [d for d in r.type.shape if isinstance(d, str) and d not in self.dims]:
                    raise Internal("V006", f"{op.name} yields {r.type}: dimension {loose[0]} is not declared", op.loc)
            seen |= {id(r) for r in op.results}
        for v in self.outputs:
            if id(v) not in seen:
                raise Internal("V002", f"output {v.name} is not defined in @{self.name}")


class Builder:
    """Places the ops constructed inside `with builder.at(loc)` into one graph."""

    current: ClassVar[Builder | None] = None

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.loc: Loc | None = None

    def locate(self) -> Loc | None:
        return self.loc

    def place(self, op: Op) -> None:
        self.graph.ops.append(op)

    @contextmanager
    def at(self, loc: Loc | None) -> Iterator[Builder]:
        before, outer = self.loc, Builder.current
        self.loc, Builder.current = loc or self.loc, self
        try:
            yield self
        finally:
            self.loc, Builder.current = before, outer


def as_tuple(types: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return types if isinstance(types, tuple) else (types,)
