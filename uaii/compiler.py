"""The compiler as a function: a checkpoint in, an artifact folder out, with the journal of what every pass did."""
from __future__ import annotations

import json
import platform
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uaii import __version__
from uaii.backends.onnx import artifact, capabilities
from uaii.backends.onnx.emit import emit
from uaii.backends.onnx.writer import DATA, Progress, write
from uaii.frontend.checkpoint import Checkpoint, TokenizerFiles
from uaii.frontend.family import Lowered, lower
from uaii.frontend.open import open_checkpoint
from uaii.frontend.tokenizer.source import tokenizer_of
from uaii.ir import loc as L
from uaii.ir.core import Graph, Op
from uaii.ir.diag import Usage
from uaii.ir.ops import Gqa
from uaii.ir.types import BLOCKS
from uaii.passes.base import Entry, run
from uaii.passes.pipelines import pipeline

MAX_CONTEXT = 131072  # longer rotation tables are asked for with --context


@dataclass
class Compiled:
    """A checkpoint taken through the pipeline, nothing written: graphs after each pass, journal and accounts."""

    checkpoint: Checkpoint
    lowered: Lowered
    graph: Graph
    journal: list[Entry]
    snapshots: list[tuple[str, Graph]]
    options: dict[str, Any]
    context: int


@dataclass
class Artifact:
    """A written artifact: its folder, its manifest, and the figures of the compile."""

    folder: Path
    manifest: dict[str, Any]
    summary: dict[str, Any] = field(default_factory=dict)


def through_passes(path: Path | str, *, target: str = "cpu", weights: str = "auto", context: int | None = None,
                   accept: tuple[str, ...] = (), keep: bool = False) -> Compiled:
    """Opens, lowers and rewrites a checkpoint without reading weights; `keep` keeps the graph after every pass."""
    device = capabilities.target(target)
    checkpoint = open_checkpoint(path)
    lowered = lower(checkpoint, frozenset(accept))
    length = _context(lowered, context)
    journal: list[Entry] = []
    snapshots: list[tuple[str, Graph]] = [("lower", lowered.graph)] if keep else []
    graph = run(lowered.graph, pipeline(device, length, weights), journal,
                (lambda name, g: snapshots.append((name, g))) if keep else None)
    options = {"target": target, "weights": weights, "context": length, "accept": sorted(accept)}
    return Compiled(checkpoint, lowered, graph, journal, snapshots, options, length)


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
    model, emitted = emit(done.graph)
    say = note or (lambda text: None)
    hparams = done.lowered.hparams | {"context_length": done.context}
    tokenizer = _tokenizer(done, hparams, say)
    with artifact.folder(Path(out)) as temp:
        places = write(model, done.graph, done.checkpoint, temp, progress)
        stop_ids = _write_text(temp, done, hparams, tokenizer)
        tensors = _tensor_report(done, places)
        manifest = artifact.finish(temp, {
            "uaii": __version__, "family": done.lowered.family.name, **hparams, "target": target,
            "kv_in_place": all(isinstance(op, Gqa) for op in done.graph.ops if any(
                r.name.startswith("present.") for r in op.results)),
            "stop_ids": list(stop_ids), "options": done.options, "accepted_keys": done.lowered.config.accepted,
            "sources": done.checkpoint.fingerprint(), "account": done.lowered.config.account(),
            "tensors": tensors, "journal": [vars(e) for e in done.journal],
            "tokenizer": tokenizer.notes if tokenizer else ["none: only token ids can be given"],
            "origins": {name: _origin(op, loc) for name, (op, loc) in emitted.origins.items()},
        })
    summary = _summary(done, tensors, Path(out), time.monotonic() - begun)
    return Artifact(Path(out), manifest, summary)


def _tokenizer(done: Compiled, hparams: dict[str, Any], say: Callable[[str], None]) -> TokenizerFiles | None:
    tokenizer, notes = tokenizer_of(done.checkpoint)
    for text in notes if tokenizer is None else tokenizer.notes:
        say(text)
    return tokenizer


def _write_text(temp: Path, done: Compiled, hparams: dict[str, Any], tok: TokenizerFiles | None) -> tuple[int, ...]:
    """The small files beside the model; returns the ids that end generation."""
    def put(name: str, data: Any) -> None:
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, indent=1)
        (temp / name).write_text(text, "utf-8")

    stops = tuple(i for i in (tok.stop_ids if tok else ()) if i < hparams["vocab_size"])
    gqa = next((op for op in done.graph.ops if isinstance(op, Gqa)), None)
    width = int(done.lowered.config.__dict__["width"])
    put("genai_config.json", artifact.genai_config(hparams, gqa.heads if gqa else 1, width, stops, tok.bos_id if tok else None,
                                                   tok.pad_id if tok else None, gqa is not None))
    put("generation_config.json", {**(tok.generation if tok else {}), "eos_token_id": list(stops)})
    if tok is not None:
        put("tokenizer.json", tok.tokenizer_json)
        put("tokenizer_config.json", tok.config)
        if tok.template is not None:
            put("chat_template.jinja", tok.template)
    return stops


def _origin(op: Op, loc: L.Loc | None) -> dict[str, Any]:
    return {"value": op.results[0].name, "op": op.name, "passes": L.passes(loc),
            "from": list(dict.fromkeys(L.show_leaf(x) for x in L.leaves(loc))) if loc else [],
            "attrs": {k: list(dict.fromkeys(L.show_leaf(x) for x in L.leaves(v))) for k, v in op.attr_locs.items()}}


def _tensor_report(done: Compiled, places: dict[str, Any]) -> list[dict[str, Any]]:
    """Per stored tensor: type and bytes in, the initializers it feeds, how it is held, and whether its values are exact."""
    users: dict[str, list[str]] = {}
    for w in done.graph.weights.values():
        recipe = w.recipe if w.recipe.op != "view" else done.graph.weights[w.recipe.args[0]].recipe
        for name in recipe.loads:
            users.setdefault(name, []).append(w.name)
    report = []
    for name, t in done.checkpoint.tensors.items():
        held = users.get(name, [])
        packed = any(h.endswith((".quants", ".rows")) for h in held)
        how = "packed" if packed else "dequantised to f32" if t.type.elem in BLOCKS else "float" if held else "unused"
        report.append({"tensor": name, "stored": str(t.type), "bytes": t.nbytes, "held": how, "exact": True,
                       "initializers": held})
    return report


def _summary(done: Compiled, tensors: list[dict[str, Any]], out: Path, seconds: float) -> dict[str, Any]:
    """What a person wants to know after a compile. Bytes are of files; peak memory is this process's resident set."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)
    return {
        "family": done.lowered.family.name, "layers": done.lowered.hparams["layers"],
        "parameters": sum(t.type.count for t in done.checkpoint.tensors.values()),
        "context": done.context, "nodes": len(done.graph.ops),
        "packed": sum(t["held"] == "packed" for t in tensors), "float": sum(t["held"] == "float" for t in tensors),
        "dequantised": sum(t["held"].startswith("dequant") for t in tensors),
        "bytes_in": sum(t.nbytes for t in done.checkpoint.tensors.values()), "bytes_out": (out / DATA).stat().st_size,
        "seconds": round(seconds, 2), "peak_bytes": peak,
    }
