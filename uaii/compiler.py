"""The compiler as a function: a checkpoint in, an artifact folder out, with the journal of what every pass did."""
from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uaii import __version__
from uaii.backends.losses import Loss
from uaii.backends.onnx import artifact, capabilities
from uaii.backends.onnx.emit import emit
from uaii.backends.onnx.writer import DATA, Progress, write
from uaii.frontend.checkpoint import Checkpoint, TokenizerFiles
from uaii.frontend.family import Lowered, lower
from uaii.frontend.open import open_checkpoint
from uaii.frontend.tokenizer.source import stop_ids_of, tokenizer_of
from uaii.ir.core import Graph, Op
from uaii.ir.diag import Usage
from uaii.ir.memory import peak_bytes
from uaii.ir.ops import DynamicFreqs, Gqa, KeyLengths, LatentGqa, LengthFreqs
from uaii.measure import fits_memory
from uaii.passes.base import Entry, run
from uaii.passes.pipelines import pipeline
from uaii.record import LOWER, Step, first_step, record, step

NAMED = "additional_chat_templates"  # where transformers looks for them
EXPERTS = re.compile(r".+\.moe\.(gate|up|down)")  # what frontend/mixture.py calls an expert's matrices
MAX_CONTEXT = 131072  # longer rotation tables are asked for with --context


@dataclass
class Compiled:
    """A checkpoint taken through the pipeline, nothing written: graphs after each pass, journal, steps and accounts."""

    checkpoint: Checkpoint
    lowered: Lowered
    graph: Graph
    journal: list[Entry]
    snapshots: list[tuple[str, Graph]]
    options: dict[str, Any]
    context: int
    steps: list[Step] = field(default_factory=list)
    losses: dict[str, Loss] = field(default_factory=dict)  # of rounded tensors, once written


@dataclass
class Artifact:
    """A written artifact: its folder, its manifest, and the figures of the compile."""

    folder: Path
    manifest: dict[str, Any]
    summary: dict[str, Any] = field(default_factory=dict)


def through_passes(path: Path | str, *, target: str = "cpu", weights: str = "auto", context: int | None = None,
                   accept: tuple[str, ...] = (), keep: bool = False) -> Compiled:
    """Opens, lowers and rewrites a checkpoint without reading weights; `keep` keeps the graph after every pass."""
    capabilities.target(target)
    return rewrite(begin(open_checkpoint(path), target=target, weights=weights, context=context, accept=accept), keep)


def begin(checkpoint: Checkpoint, *, target: str = "cpu", weights: str = "auto", context: int | None = None,
          accept: tuple[str, ...] = ()) -> Compiled:
    """Lowers an open checkpoint; no pass has run yet."""
    capabilities.target(target)
    lowered = lower(checkpoint, frozenset(accept))
    length = _context(lowered, context)
    options = {"target": target, "weights": weights, "context": length, "accept": sorted(accept)}
    return Compiled(checkpoint, lowered, lowered.graph, [], [], options, length, [first_step(lowered.graph)])


def rewrite(c: Compiled, keep: bool = False) -> Compiled:
    """Runs the pipeline on `c` in place: when a pass raises, what was done until then stays readable."""
    passes = pipeline(capabilities.target(c.options["target"]), c.context, c.options["weights"])
    c.snapshots += [(LOWER, c.graph)] if keep else []
    read = 0

    def each(name: str, graph: Graph) -> None:
        nonlocal read
        c.steps.append(step(name, passes[len(c.steps) - 1].why, c.steps[-1], graph, c.journal[read:]))
        c.snapshots += [(name, graph)] if keep else []
        c.graph, read = graph, len(c.journal)

    run(c.graph, passes, c.journal, each)
    return c


def _context(lowered: Lowered, asked: int | None) -> int:
    limit = int(lowered.hparams["context_length"])
    if asked is None:
        return min(limit, MAX_CONTEXT)
    if not 0 < asked <= limit:
        raise Usage("U022", f"--context {asked} is outside 1..{limit}, the model's own length")
    return asked


def compile_model(path: Path | str, out: Path | str, *, target: str = "cpu", weights: str = "auto",
                  context: int | None = None, accept: tuple[str, ...] = (), progress: Progress | None = None,
                  note: Callable[[str], None] | None = None) -> Artifact:
    """Compiles the checkpoint at `path` into the folder `out`, which appears whole or not at all.

    Raises Diagnostic; nothing is written when the target cannot run the model.
    """
    begun = time.monotonic()
    done = through_passes(path, target=target, weights=weights, context=context, accept=accept)
    fits_memory(done.graph)
    model, emitted = emit(done.graph)
    say = note or (lambda text: None)
    hparams = done.lowered.hparams | {"context_length": done.context}
    tokenizer, notes = tokenizer_of(done.checkpoint)
    stop_ids = tokenizer.stop_ids if tokenizer else stop_ids_of(done.checkpoint, hparams["vocab_size"], notes)
    for text in (*done.lowered.build.notes, *notes):
        say(text)
    with artifact.folder(Path(out)) as temp:
        written = write(model, done.graph, done.checkpoint, temp, progress, emitted.views)
        done.losses = written.losses
        _write_text(temp, done, hparams, tokenizer, stop_ids)
        manifest = artifact.finish(temp, {
            "uaii": __version__, **record(done, emitted.origins),
            "kv_in_place": all(isinstance(op, Gqa | LatentGqa) for op in _keepers(done.graph)),
            "kv_latent": all(isinstance(op, LatentGqa) for op in _keepers(done.graph)),
            "kv_windows": _windows(done.graph),
            "whole_prompt": any(isinstance(op, DynamicFreqs) for op in done.graph.ops),
            "rope_switch": next((op.limit for op in done.graph.ops if isinstance(op, LengthFreqs)), None),
            "stop_ids": list(stop_ids),
            "tokenizer": notes, "notes": done.lowered.build.notes,
        }, {DATA: written.sha256})
    summary = _summary(done, manifest["tensors"], Path(out), time.monotonic() - begun)
    return Artifact(Path(out), manifest, summary)


def _keepers(graph: Graph) -> list[Op]:
    """The ops that yield the cache."""
    return [op for op in graph.ops if any(r.name.startswith("present.") for r in op.results)]


def _windows(graph: Graph) -> list[int]:
    """Per layer the window in tokens of a cache that may be handed over from a later key on, 0 for all others."""
    found = [(int(op.past_k.name.split(".")[1]), op) for op in _keepers(graph) if isinstance(op, Gqa)]
    counted = {i: op.window for i, op in found if isinstance(op.lengths.op, KeyLengths) and op.lengths.op.start is not None}
    return [counted.get(i, 0) for i, _ in sorted(found)] if counted else []


def _write_text(temp: Path, done: Compiled, hparams: dict[str, Any], tok: TokenizerFiles | None, stops: tuple[int, ...]) -> None:
    """The small files beside the model; `stops` are the ids that end generation."""
    def put(name: str, data: Any) -> None:
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, indent=1)
        (temp / name).write_text(text, "utf-8")

    heads = next((op.heads if isinstance(op, Gqa) else int(op.q_plain.type.shape[2]) for op in _keepers(done.graph)
                  if isinstance(op, Gqa | LatentGqa)), 0)
    width = int(done.lowered.config.__dict__["width"])
    put("genai_config.json", artifact.genai_config(hparams, heads or 1, width, stops, tok.bos_id if tok else None,
                                                   tok.pad_id if tok else None, heads > 0))
    put("generation_config.json", {**(tok.generation if tok else {}), "eos_token_id": list(stops)})
    if tok is not None:
        put("tokenizer.json", tok.tokenizer_json)
        put("tokenizer_config.json", tok.config)
        if tok.template is not None:
            put("chat_template.jinja", tok.template)
        for name, template in tok.templates.items():
            (temp / NAMED).mkdir(exist_ok=True)
            put(f"{NAMED}/{name}.jinja", template)


def _summary(done: Compiled, tensors: list[dict[str, Any]], out: Path, seconds: float) -> dict[str, Any]:
    """What a person wants to know after a compile. Bytes are of files; peak memory is this process's, None where not known."""
    rounded = [t for t in tensors if t["held"] == "quantised"]
    return {
        "family": done.lowered.family.name, "layers": done.lowered.hparams["layers"],
        "parameters": done.lowered.parameters,
        "context": done.context, "nodes": len(done.graph.ops),
        "packed": sum(t["held"] == "packed" for t in tensors), "float": sum(t["held"] == "float" for t in tensors),
        "dequantised": sum(t["held"].startswith("dequant") for t in tensors), "experts": dict(Counter(
            t["packing"] or t["held"] for t in tensors if EXPERTS.fullmatch(t["use"]))),
        "quantised": len(rounded), "worst_error": max(
            ({"tensor": t["tensor"], **t["error"]} for t in rounded if t["error"]), key=lambda e: e["rms"], default=None),
        "bytes_in": sum(t.nbytes for t in done.checkpoint.tensors.values()), "bytes_out": (out / DATA).stat().st_size,
        "seconds": round(seconds, 2), "peak_bytes": peak_bytes(),
    }
