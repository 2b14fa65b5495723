"""A pass rebuilds a graph rule by rule. The driver, not the rule, keeps origins, accounts and the journal."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from uaii.ir import loc as L
from uaii.ir.account import Account
from uaii.ir.core import Builder, Graph, Op, Value, Weight
from uaii.ir.diag import Internal
from uaii.ir.recipe import Recipe
from uaii.ir.stages import Stage

OpT = TypeVar("OpT", bound=Op)


@dataclass
class Rewrite:
    """What a rule sees: the graph being built, and the ops it has looked through. A rule whose answer depends on more than
    the graph says in `why` what decided it."""

    graph: Graph
    pass_: str
    why: str
    at: L.Loc | None = None
    seen: list[L.Loc] = field(default_factory=list)
    moved: dict[Value, Value] = field(default_factory=dict)
    account: Account = field(default_factory=Account)

    def producer(self, value: Value | None, kind: type[OpT]) -> OpT | None:
        """The op behind `value` if it is of that kind; its origin joins what the rule makes."""
        if value is None or not isinstance(value.op, kind):
            return None
        self.seen += [value.op.loc] if value.op.loc is not None else []
        return self.account.watch(value.op)

    def beside(self, value: Value | None, kind: type[OpT]) -> OpT | None:
        """The op behind `value` if it is of that kind, for a look only: the rule does not replace it."""
        return value.op if value is not None and isinstance(value.op, kind) else None

    def also(self, old: Value, new: Value) -> None:
        """From here on, `new` stands for `old` too."""
        self.moved[old] = new

    def weight(self, name: str, recipe: Recipe, *of: Weight | L.Loc | None) -> Weight:
        """A weight under a recipe; the same name with another recipe gets a number. `of` is what it was made from."""
        locs = [x.loc if isinstance(x, Weight) else x for x in of]
        whence = L.By(self.pass_, self.why, tuple(dict.fromkeys(x for x in locs if x is not None)))
        base, n = name, 1
        while name in self.graph.weights and self.graph.weights[name].recipe != recipe:
            name, n = f"{base}.{n}", n + 1
        return self.graph.weights.setdefault(name, Weight(recipe.type, name, recipe=recipe, loc=whence))

    def remake(self, op: Op, **changes: Any) -> Op:
        """The same op with some operands or attributes replaced; everything else it says is carried over."""
        return _copy(op, {n: getattr(op, n) for n in (*op.operand_names, *op.attr_names)} | changes)


@dataclass(frozen=True)
class Why:
    """A rule's answer when it looked and declined; kept for `uaii-explain --why-not`."""

    not_: str


Answer = tuple[Value, ...] | Why | None


@dataclass(frozen=True)
class Pass:
    """One idea: a root op, a sentence, a rule. It returns the root's new results, a Why, or None (not concerned)."""

    name: ClassVar[str]
    why: ClassVar[str]
    root: ClassVar[type[Op] | tuple[type[Op], ...]]
    stage_out: ClassVar[Stage | None] = None

    def rule(self, op: Any, rw: Rewrite) -> Answer:
        raise NotImplementedError


@dataclass(frozen=True)
class GraphPass:
    """An idea about the graph as a whole. Returns the new graph and its journal entries."""

    name: ClassVar[str]
    why: ClassVar[str]

    def whole(self, graph: Graph) -> tuple[Graph, list[Entry]]:
        raise NotImplementedError


AnyPass = Pass | GraphPass


@dataclass(frozen=True)
class Entry:
    """One line of the journal: a rule applied or declined at a place."""

    pass_: str
    at: str
    says: str
    applied: bool


def run(graph: Graph, passes: Sequence[AnyPass], journal: list[Entry] | None = None,
        each: Callable[[str, Graph], None] | None = None) -> Graph:
    """Applies passes in order, verifying after each; `each` sees every graph on the way."""
    notes = journal if journal is not None else []
    for p in passes:
        if isinstance(p, Pass):
            graph = _apply(graph, p, notes)
        else:
            graph, entries = p.whole(graph)
            notes += entries
        graph.verify()
        if each:
            each(p.name, graph)
    return graph


def _apply(old: Graph, p: Pass, journal: list[Entry]) -> Graph:
    new = Graph(old.name, p.stage_out or old.stage, list(old.inputs), dict(old.weights), dict(old.dims),
                output_names=list(old.output_names))
    builder, now = Builder(new), dict[Value, Value]()
    for op in old.ops:
        fresh = copy(op, now, builder)
        results = fresh.results
        if isinstance(fresh, p.root):
            rw = Rewrite(new, p.name, p.why, fresh.loc)
            mark = len(new.ops)
            with builder.at(fresh.loc):
                answer = p.rule(rw.account.watch(fresh), rw)
            where = L.site(fresh.loc)
            if isinstance(answer, Why):
                del new.ops[mark:]
                journal.append(Entry(p.name, where, answer.not_, applied=False))
            elif answer is not None:
                _settle(p, rw, fresh, new.ops[mark:], answer)
                results = answer
                now = {k: rw.moved.get(v, v) for k, v in now.items()}
                journal.append(Entry(p.name, where, rw.why, applied=True))
        now |= zip(op.results, results, strict=True)
    new.outputs = [now.get(v, v) for v in old.outputs]
    return sweep(new)


def _settle(p: Pass, rw: Rewrite, op: Op, made: list[Op], answer: tuple[Value, ...]) -> None:
    """Closes the rule's account and gives what it made its origin and the old names."""
    if unread := rw.account.unread():
        what = ", ".join(f"{o.name}.{f}" for o, f in unread)
        raise Internal("P201", f"{p.name} replaces ops without reading {what}", op.loc,
                       why="what a rule does not read, the graph after it no longer says")
    loc = L.By(p.name, rw.why, tuple(dict.fromkeys((*([op.loc] if op.loc else []), *rw.seen))))
    for m in made:
        object.__setattr__(m, "loc", loc)
        for r in m.results:
            r.name = r.name or f"{op.results[0].name}.{m.name}"
    for before, after in zip(op.results, answer, strict=True):
        if after.op in made:
            after.name = before.name


def copy(op: Op, now: dict[Value, Value], builder: Builder) -> Op:
    """The op over the values that now stand for its operands, with the same origins and names."""
    with builder.at(op.loc):
        fresh = _copy(op, {n: now.get(v, v) if isinstance(v := getattr(op, n), Value) else v
                           for n in (*op.operand_names, *op.attr_names)})
    object.__setattr__(fresh, "attr_locs", op.attr_locs)
    for a, c in zip(op.results, fresh.results, strict=True):
        c.name = a.name
    return fresh


def _copy(op: Any, fields: dict[str, Any]) -> Op:
    kind = type(getattr(op, "_op", op))
    made: Op = kind(**fields)
    return made


def with_weights(graph: Graph, now: dict[Value, Value]) -> Graph:
    """The graph with each weight that `now` names replaced by another under the same name."""
    weights = {k: v for k, w in graph.weights.items() if isinstance(v := now.get(w, w), Weight)}
    new = Graph(graph.name, graph.stage, list(graph.inputs), weights, dict(graph.dims), output_names=list(graph.output_names))
    builder, values = Builder(new), dict(now)
    for op in graph.ops:
        values |= zip(op.results, copy(op, values, builder).results, strict=True)
    new.outputs = [values.get(v, v) for v in graph.outputs]
    return new


def sweep(graph: Graph) -> Graph:
    """Drops ops, weights and optional inputs that nothing reads."""
    live = set(graph.outputs)
    kept = []
    for op in reversed(graph.ops):
        if any(r in live for r in op.results):
            kept.append(op)
            live |= set(op.operands)
    graph.ops = kept[::-1]
    graph.weights = {k: w for k, w in graph.weights.items() if w in live}
    graph.inputs = [v for v in graph.inputs if v.default is None or v in live]
    return graph
