"""Where a compile went wrong: the first pass after which the graph means something else, or what comes after the last."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from uaii.backends.onnx.compare import Found
from uaii.compiler import Compiled
from uaii.distances import INT8, Distance, difference
from uaii.ir.diag import Internal
from uaii.ir.loc import File
from uaii.ir.text import show
from uaii.ways import Calls, Meaning, Progress

ROUNDING = 1e-4  # of a position's range: frequencies, tables and sums that passes fold are f32
SHOWN = 4         # names in a list


@dataclass(frozen=True)
class After:
    """A pass that changed the graph: how far the logits of the graph after it are from those before any, over their range."""

    pass_: str
    applied: int
    difference: float

    @property
    def ok(self) -> bool:
        """Whether that is rounding."""
        return self.difference <= ROUNDING

    def record(self) -> dict[str, Any]:
        """The JSON form."""
        said = asdict(self)
        return {"pass": said.pop("pass_"), **said, "ok": self.ok}


def after_passes(done: Compiled, base: int, meaning: Meaning, calls: Calls, tell: Progress) -> Iterator[After]:
    """Every pass after the graph number `base` that changed something, in order. The text runs in these calls, so that the
    caches are looked at too."""
    want, before = meaning.rows(calls), show(done.snapshots[base][1])
    for (name, graph), step in list(zip(done.snapshots, done.steps, strict=True))[base + 1:]:
        text = show(graph)
        if text == before:
            continue
        got = Meaning(graph, meaning.source, meaning.ids, meaning.switch, partial(tell, f"after {name}")).run(calls)
        yield After(name, step.applied, difference(got, want))
        before = text


def failed(artifact: Path, source: str, runs: Sequence[Distance], weights: Found, passes: Sequence[After]) -> Internal:
    """The error of an artifact that does not compute what its checkpoint means: what is off, and where it went wrong."""
    broken = next((p for p in passes if not p.ok), None)
    notes = [f"{run.run}, {run.activations} activations: {_off(run)}" for run in runs if not run.ok]
    if weights.differing:
        notes.append(f"{len(weights.differing)} of {weights.compared} weights are other bytes than the checkpoint's: "
                     + _first(weights.differing))
    notes += [f"not what this compiler writes: {text}" for text in weights.nodes[:SHOWN]]
    if broken:
        notes.append(f"the first wrong pass is {broken.pass_}: after it logits differ by {broken.difference:.2g} of their range")
    else:
        notes.append("every pass keeps the meaning: " + _after_the_passes(runs, weights))
    again = "compile the checkpoint again, and verify; if it stays, report it with this output and uaii.json"
    return Internal("R101", f"{artifact} does not compute what {source} means", File(str(artifact)), notes=notes,
                    why="the reference computes it in f64 from the checkpoint itself", hint=again)


def _after_the_passes(runs: Sequence[Distance], weights: Found) -> str:
    if weights.differing:
        return "the weights in the artifact are not the checkpoint's (damaged, edited, or the checkpoint has changed since)"
    if weights.nodes:
        return "model.onnx is not what its last graph is written as"
    if all(run.ok for run in runs if run.activations != INT8) and any(run.activations == INT8 for run in runs):
        return "with f32 activations the artifact is right, so the kernels for int8 activations are not"
    return "the emission is wrong, or onnxruntime is"


def _off(run: Distance) -> str:
    moved = f", another best token at position {_first(list(map(str, run.moved)))}" if run.moved else ""
    return f"difference {run.difference:.2g}, noise {run.noise:.2g} ({run.bound}){moved}"


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if names[SHOWN:] else "")
