"""Whether an artifact computes what its checkpoint means: its files, its source, its weights, its logits."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from uaii import __version__
from uaii.backends.onnx.compare import Found, compare
from uaii.backends.onnx.emit import emit
from uaii.backends.ort.exact import exact_session
from uaii.backends.ort.manifest import NAME, Manifest, read_manifest
from uaii.backends.ort.session import Session
from uaii.backends.reference import has_meaning
from uaii.blame import After, after_passes, failed
from uaii.compiler import Compiled, begin, rewrite
from uaii.distances import EXPERTS, F32, INT8, Choices, Distance, choices, difference, distance
from uaii.explanation import explain
from uaii.ir.core import Graph, Op
from uaii.ir.diag import Diagnostic, Usage
from uaii.ir.memory import peak_bytes
from uaii.ir.ops import ExpertKernel
from uaii.measure import fits_reference
from uaii.sources import reopened
from uaii.texts import Text, text_of
from uaii.ways import PARTS, STEPS, WHOLE, Meaning, Progress, answers, unreached, ways

LOSSY = ("quantise",)  # recipes that change values because the user asked for it
ABSENT = ("U070", "U071")  # the checkpoint is not there, or is another one
PASS, FAIL, NOT_DONE = "PASS", "FAIL", "NOT DONE"


@dataclass
class Report:
    """A verification. `files` are names and sizes in bytes; `source` says what the checkpoint is and whether it is the one that
    was compiled; `weights` what of the data was compared; `reference` after which pass the judge's graph stands (`lower` is
    before any); `runs` each run beside it; `passes` the graphs on the way, when they were looked at; `error` is what stands
    between the artifact and a PASS."""

    artifact: Path
    files: dict[str, int]
    source: dict[str, Any] = field(default_factory=dict)
    weights: Found | None = None
    text: Text | None = None
    reference: str | None = None
    lost: float | None = None
    runs: list[Distance] = field(default_factory=list)
    choices: Choices | None = None
    passes: list[After] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: Diagnostic | None = None
    seconds: float = 0.0
    peak_bytes: int | None = None

    @property
    def verdict(self) -> str:
        """PASS, FAIL, or NOT DONE when the source is not there."""
        return PASS if self.error is None else NOT_DONE if self.error.code in ABSENT else FAIL

    @property
    def exit_code(self) -> int:
        """0 for a PASS, else that of the error."""
        return self.error.exit_code if self.error else 0

    def record(self) -> dict[str, Any]:
        """The JSON form."""
        out = {"artifact": str(self.artifact), "verdict": self.verdict, "files": self.files, "source": self.source,
               "weights": vars(self.weights) if self.weights else None, "prompt_tokens": self.text.ids if self.text else None,
               "reference": self.reference, "rounded_on_request": self.lost, "runs": [run.record() for run in self.runs],
               "choices_of_experts": vars(self.choices) if self.choices else None, "passes": [p.record() for p in self.passes],
               "notes": self.notes, "seconds": round(self.seconds, 2), "peak_bytes": self.peak_bytes}
        return out | ({"error": self.error.record()} if self.error else {})


def verify(artifact: Path | str, source: Path | str | None = None, *, prompt: str | None = None,
           token_ids: Sequence[int] | None = None, tokens: int | None = None, threads: int | None = None, passes: bool = False,
           progress: Progress | None = None) -> Report:
    """Compares an artifact's logits with those that NumPy computes in f64 from the checkpoint, before any pass.

    `source` is the checkpoint, by default where the manifest says; `prompt` or `token_ids` the text, cut or repeated to
    `tokens`; `passes` also evaluates the graph after every pass, as is done anyway after a FAIL. `progress` is told what runs,
    steps done, and steps in all. A checkpoint that is not there or is another one is the report's `error`, as is a FAIL.
    Raises Diagnostic for files that are damaged, a text that cannot be run, and a graph that does not fit the memory (C403).
    """
    begun = time.monotonic()
    folder = Path(artifact)
    manifest = read_manifest(folder, hashes=True)
    report = Report(folder, manifest.files)
    strange = sorted({p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} - {NAME, *manifest.files})
    report.notes += [f"not in {NAME}, not looked at: {', '.join(strange)}"] if strange else []
    tell = progress or (lambda what, done, total: None)
    try:
        said = explain(folder).record
        checkpoint, options, report.source = reopened(said, source, report.notes)
        report.text = text_of(folder, manifest, prompt, token_ids, tokens)
        if said.get("uaii") != __version__:
            report.notes.append(f"compiled by uaii {said.get('uaii')}, judged by {__version__}")
        _judge(report, manifest, rewrite(begin(checkpoint, **options), keep=True), said["weights"], threads, passes, tell)
    except Usage as err:
        if err.code not in ABSENT:
            raise
        report.error = err
    report.seconds = time.monotonic() - begun
    report.peak_bytes = peak_bytes()
    return report


def _judge(r: Report, manifest: Manifest, done: Compiled, said: dict[str, Any], threads: int | None, passes: bool,
           tell: Progress) -> None:
    """Fills the report in: weights, runs, and where it went wrong. `said` is what the manifest has of the weights."""
    assert r.text is not None
    base, first = _base(done)
    r.reference, graph = done.snapshots[base]
    fits_reference(graph)
    r.weights = compare(r.artifact, done.graph, emit(done.graph), done.checkpoint, said, partial(tell, "weights"))
    switch, count = manifest.rope_switch, len(r.text.ids)
    meaning = Meaning(graph, done.checkpoint, r.text.ids, switch, partial(tell, "reference"))
    _runs(r, manifest, meaning, done.graph, threads, tell)
    calls = ways(count)[PARTS if count > 1 and (switch is None or count <= switch) else WHOLE]
    if base != first:
        before = Meaning(done.snapshots[first][1], done.checkpoint, r.text.ids, switch, partial(tell, "before rounding"))
        r.lost = difference(meaning.rows(calls), before.rows(calls))
    wrong = bool(r.weights.differing) or not all(run.ok for run in r.runs)
    for after in after_passes(done, base, meaning, calls, tell) if wrong or passes else ():
        r.passes.append(after)
        if not (passes or after.ok):
            break
    r.notes += unreached(graph, count, switch, manifest.context_length)
    if wrong or not all(after.ok for after in r.passes):
        r.error = failed(r.artifact, r.source["path"], r.runs, r.weights, r.passes)


def _base(done: Compiled) -> tuple[int, int]:
    """The graph that judges, and the first one that has a meaning: another one where values were rounded on request."""
    first = next(i for i, (_, graph) in enumerate(done.snapshots) if has_meaning(graph))
    lossy = (i for i, (_, graph) in enumerate(done.snapshots) if _lossy(graph))
    return max(first, next(lossy, first)), first


def _lossy(graph: Graph) -> bool:
    return any(part.op in LOSSY for w in graph.weights.values() for part in w.recipe.parts)


def _runs(r: Report, manifest: Manifest, meaning: Meaning, last: Graph, threads: int | None, tell: Progress) -> None:
    """With f32 activations at once and in two parts, where kernels round them; then as the artifact is, every way. `last` is the
    graph that was emitted. One session at a time is open."""
    every = ways(len(meaning.ids))
    wanted = {name: meaning.rows(calls) for name, calls in every.items()}
    r.choices = choices([np.concatenate(parts) for parts in meaning.margins.values()]) if meaning.margins else None

    def beside(session: Session, activations: str, names: Iterable[str], expected: float) -> None:
        tied = r.choices.first(activations) if r.choices else None
        for name in names:
            got = answers(session, meaning.ids, every[name], partial(tell, f"onnxruntime, {name}"))
            r.runs.append(replace(distance(name, activations, got, wanted[name], tied), expected=expected))
        if r.choices and (at := r.choices.tied[activations]):
            r.notes.append(f"activations {activations}: rounding may choose other experts in {len(at)} of {r.choices.count} "
                           f"choices, first at position {at[0]}; noise is of the median position, a difference of those before")

    def expected(activations: str, rounds: Callable[[Op], bool]) -> float:
        """The noise of the reference when it rounds the same activations; 0 when no op does."""
        if not any(op.attrs.get("int8_activations") and rounds(op) for op in last.ops):
            return 0.0
        rounded = Meaning(last, meaning.source, meaning.ids, meaning.switch, partial(tell, "reference, int8"), rounds)
        return distance(WHOLE, activations, rounded.rows(every[WHOLE]), wanted[WHOLE],
                        r.choices.first(activations) if r.choices else None).noise

    with exact_session(r.artifact, manifest, threads) as exact:
        if exact:
            left = expected(EXPERTS, always_int8)
            beside(exact, EXPERTS if left else F32, [name for name in every if name != STEPS], left)
    del exact
    as_it_is = expected(INT8, lambda op: True)
    beside(Session.open(r.artifact, threads=threads, device="cpu"), INT8 if as_it_is else F32, every, as_it_is)


def always_int8(op: Op) -> bool:
    """Whether the op's kernel rounds activations whatever its accuracy level: onnxruntime's QMoE does with 8 bits."""
    return isinstance(op, ExpertKernel) and op.bits == 8
