"""A text fed to a model at once, token by token and in two parts: to the artifact by onnxruntime, to a graph by the reference."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from uaii.backends import recipes, reference
from uaii.backends.ort.cache import STRIDE
from uaii.backends.ort.session import Session
from uaii.ir import ops
from uaii.ir.core import Graph, Op
from uaii.ir.diag import Malformed
from uaii.ir.loc import File

Array = Any
Calls = list[tuple[int, int]]            # tokens [start, stop) of each call
Progress = Callable[[str, int, int], None]  # what runs, steps done, steps in all
WHOLE, STEPS, PARTS = "whole prompt", "token by token", "two parts"


def ways(count: int) -> dict[str, Calls]:
    """The calls of each way for a text of so many tokens; ways that would be the same are there once."""
    half = count // 2
    found: dict[str, Calls] = {WHOLE: [(0, count)]}
    if half:
        found |= {PARTS: [(0, half), (half, count)]}
    if count > 2:
        found |= {STEPS: [(i, i + 1) for i in range(count)]}
    return found


def answers(session: Session, ids: Sequence[int], calls: Calls, tell: Callable[[int, int], None]) -> Array:
    """The artifact's logits [S,V]; NaN where it gave something that is not finite."""
    cache, parts = session.cache(), []
    for start, stop in calls:
        try:
            parts.append(session.prefill(ids[start:stop], cache, keep_logits=0))
        except Malformed as err:
            if err.code != "S615":
                raise
            parts.append(np.full((len(ids) - start, session.vocab_size), np.nan, np.float32))
            break
        tell(stop, len(ids))
    return np.concatenate(parts)


@dataclass
class Meaning:
    """What a graph means for a text, in f64. `switch` is the length beyond which all keys are rotated otherwise (longrope).

    Logits of a position depend on its own call where dynamic rope reaches beyond the original length: then the graph is
    evaluated call by call with its own cache. With a switch a cache serves one side of it, so that a call says what the text
    up to its end says. In all other graphs every way means the same.
    """

    graph: Graph
    source: recipes.Source
    ids: Sequence[int]
    switch: int | None = None
    tell: Callable[[int, int], None] = lambda done, total: None
    rounds: Callable[[Op], bool] = lambda op: False  # ops whose activations are rounded as their kernels do
    margins: dict[Op, list[Array]] = field(default_factory=dict)  # of each layer's choices of experts, see `margin`
    _known: dict[Any, Array] = field(default_factory=dict)

    @property
    def by_call(self) -> bool:
        """Whether the calls decide what a position means."""
        return any(isinstance(op, ops.DynamicFreqs) and op.max_positions < len(self.ids) for op in self.graph.ops)

    def rows(self, calls: Calls) -> Array:
        """Logits [S,V] for these calls. Raises Malformed R103 where they are not finite."""
        if self.by_call:
            return self._once(tuple(calls), lambda: self.run(calls))
        if self.switch is None or self.switch >= len(self.ids):
            return self._once(len(self.ids), lambda: self.run([(0, len(self.ids))]))
        near = self._once(self.switch, lambda: self.run([(0, self.switch or 0)]))
        far = self._once(len(self.ids), lambda: self.run([(0, len(self.ids))]))
        return np.concatenate([(near if stop <= self.switch else far)[start:stop] for start, stop in calls])

    def _once(self, key: Any, made: Callable[[], Array]) -> Array:
        if key not in self._known:
            self._known[key] = made()
        return self._known[key]

    def run(self, calls: Calls) -> Array:
        """Logits of these calls, one after another through the graph's own cache."""
        empty = {"B": 1, "P": 0}
        cache, parts = {v.name: np.zeros([empty[d] if isinstance(d, str) else d for d in v.type.shape])
                        for v in self.graph.inputs if "P" in v.type.shape}, []
        total, done, self.margins = len(calls) * len(self.graph.ops), 0, {}

        def watch(op: Op, args: dict[str, Any]) -> None:
            nonlocal done
            done += 1
            self.tell(done, total)
            if isinstance(op, ops.MixtureOfExperts):
                self.margins.setdefault(op, []).append(margin(op, args["logits"], args["correction"]).reshape(-1))

        for start, stop in calls:
            feeds = {"input_ids": np.array([self.ids[start:stop]]), "attention_mask": np.ones((1, stop), np.int64)} | cache
            made = dict(zip(self.graph.output_names, reference.evaluate(self.graph, feeds, self.source, watch, self.rounds),
                            strict=True))
            parts.append(made["logits"][0])
            cache = {name: made[name.replace("past_key_values.", "present.", 1)] for name in cache}
        logits = np.concatenate(parts)
        if not np.isfinite(logits).all():
            raise Malformed("R103", "what the checkpoint means is not finite: its own logits hold NaN or infinity in f64",
                            File(self.graph.name), why="nothing can be compared with them", hint="the weights are damaged: take "
                            "the checkpoint again from its publisher")
        return logits


def unreached(graph: Graph, count: int, switch: int | None, context: int) -> list[str]:
    """What a text of so many tokens does not show of the model, and how long a text would."""
    windows = sorted({op.window for op in graph.ops if isinstance(op, ops.Attention | ops.Gqa) and op.window})
    bounds = [(f"a window of {w} tokens", w) for w in windows]
    bounds += [("the length from which on the runner leaves keys out", w + STRIDE) for w in windows]
    bounds += [("the switch of longrope's factors", switch)] if switch else []
    bounds += [("the length from which on rope is rescaled", n) for n in sorted(
        {op.max_positions for op in graph.ops if isinstance(op, ops.DynamicFreqs)})]
    missed = [(what, n) for what, n in bounds if count <= n < context - 1]
    return [f"{what} is not passed by {count} tokens; --tokens {n + 2} passes it" for what, n in missed]


def margin(op: ops.MixtureOfExperts, logits: Array, correction: Array | None) -> Array:
    """By how much the last expert that a token is sent to leads the next one, over the spread of its scores; [...]."""
    _, biased = reference.biased_scores(logits, correction, op)
    ranked = np.sort(biased, -1)
    if op.top_k == ranked.shape[-1]:
        return np.full(ranked.shape[:-1], np.inf)
    spread = np.where(np.isfinite(ranked), ranked, np.nan)
    return (ranked[..., -op.top_k] - ranked[..., -op.top_k - 1]) / (np.nanstd(spread, -1) + 1e-300)
