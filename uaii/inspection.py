"""What a checkpoint is and what bars it, found by taking it through the compiler as far as it goes without its weights."""
from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uaii.backends.onnx.emit import emit
from uaii.compiler import Compiled, begin, rewrite
from uaii.facts import architecture, dtypes, facts, named_family
from uaii.frontend.checkpoint import Checkpoint, TokenizerFiles
from uaii.frontend.family import recognise
from uaii.frontend.gguf import Gguf
from uaii.frontend.hf import HfFolder
from uaii.frontend.hf_blockers import KEYS as QUANTIZED
from uaii.frontend.open import open_checkpoint
from uaii.frontend.tokenizer.source import stop_ids_of, tokenizer_of
from uaii.ir.diag import Diagnostic, Usage
from uaii.ir.loc import Key, leaves
from uaii.measure import fits_memory

GATES = ("architecture", "layout", "weights", "tokenizer")
# Refusals of weights that leave every tensor's name and shape readable, so that the layout can be judged all the same.
NAMES_READABLE = ("G309", "G311", "H309", "H311")


@dataclass(frozen=True)
class Gate:
    """One of the four conditions: `state` is ok, blocked, "not checked" (something before it is in the way), or, for a
    model that compiles without a tokenizer, "token ids only"."""

    says: str
    state: str


@dataclass
class Report:
    """An inspected checkpoint. `blockers` are the errors of a compile, the one that it would raise first; `notes` are what
    it would say. The model compiles when `ok`; text prompts need a tokenizer too."""

    path: Path
    family: str = "unknown"
    format: str | None = None
    architecture: str | None = None
    layout: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    tokenizer: dict[str, Any] = field(default_factory=dict)
    gates: dict[str, Gate] = field(default_factory=dict)
    blockers: list[Diagnostic] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.blockers

    @property
    def exit_code(self) -> int:
        """0, or that of the first blocker."""
        return self.blockers[0].exit_code if self.blockers else 0

    def record(self) -> dict[str, Any]:
        """The JSON form."""
        return {"path": str(self.path), "family": self.family, "format": self.format, "architecture": self.architecture,
                "layout": self.layout, **self.facts, "tokenizer": self.tokenizer,
                "gates": {k: vars(g) for k, g in self.gates.items()}, "status": "ok" if self.ok else "blocked",
                "blocked": [b.record() | {"exit_code": b.exit_code} for b in self.blockers], "notes": self.notes}


def inspect(path: Path | str, *, target: str = "cpu", weights: str = "auto", context: int | None = None,
            accept: tuple[str, ...] = ()) -> Report:
    """Reports on a folder or a .gguf file from its headers; the options are compile's.

    Raises Usage for a path or an option that is wrong; everything else that compile would raise is a blocker.
    """
    report = Report(Path(path))
    try:
        ckpt = open_checkpoint(path, inspect=True)
    except Usage:
        raise
    except Diagnostic as err:
        report.blockers.append(err)
        report.gates = _gates(report.blockers, dict.fromkeys(GATES, ""), set())
        return report
    report.blockers += ckpt.blocked()
    report.notes += ckpt.notes
    made, reached = _compile(ckpt, report.blockers, {"target": target, "weights": weights, "context": context, "accept": accept})
    text = _tokenizer(ckpt, made, report)
    family = named_family(ckpt)
    report.family = family.name if family else "unknown"
    report.format, report.architecture = ckpt.format, architecture(ckpt)
    report.layout = f"{report.family}, {ckpt.format} names" if "layout" in reached else None
    report.facts = facts(ckpt, family, made, weights)
    report.tokenizer = _describe(text)
    kinds = dtypes(ckpt)
    says = {"architecture": report.architecture or "not named", "layout": report.layout or "",
            "weights": next(iter(kinds), "none") if len(kinds) < 2 else ", ".join(f"{k} x{n}" for k, n in kinds.items()),
            "tokenizer": report.tokenizer.get("kind") or "none"}
    report.gates = _gates(report.blockers, says, reached | {"tokenizer"})
    if text is None and report.gates["tokenizer"].state == "ok":
        report.gates["tokenizer"] = Gate(says["tokenizer"], "token ids only")
    return report


def _compile(ckpt: Gguf | HfFolder, blockers: list[Diagnostic], options: dict[str, Any]) -> tuple[Compiled | None, set[str]]:
    """Lowers, rewrites and emits; adds what bars it to `blockers`. Returns how far it came and the gates it has judged."""
    readable = all(b.code in NAMES_READABLE for b in blockers) and (bool(ckpt.tensors) or not blockers)
    barred = bool(blockers)
    reached = {"weights"}
    made = None
    try:
        recognise(ckpt)
        reached |= {"architecture"}
        made = begin(ckpt, **options)
        reached |= {"layout"}
        rewrite(made)
        fits_memory(made.graph)
        emit(made.graph)
    except Usage:
        raise
    except Diagnostic as err:
        gate = gate_of(err.code)
        if gate == "layout" and not readable or gate == "weights" and barred or _repeats(err, blockers):
            return made, reached  # it only repeats what is in the way already
        blockers.append(err)
        reached |= {gate}
    return made, reached


def _repeats(err: Diagnostic, blockers: list[Diagnostic]) -> bool:
    """Whether the only keys that nobody reads are those that declare a quantisation already refused."""
    keys = [x.path for x in leaves(err.where) if isinstance(x, Key)] if err.code == "F101" and err.where else []
    return bool(keys) and all(k in QUANTIZED for k in keys) and any(b.code == "H330" for b in blockers)


def gate_of(code: str) -> str:
    """The gate that an error belongs to."""
    if code[0] in "GHU" and code != "H310" or code in ("T204", "C402"):
        return "weights"
    if code[0] == "T" or code == "F107":
        return "layout"
    return "tokenizer" if code[0] == "K" or code == "H312" else "architecture"


def _gates(blockers: list[Diagnostic], says: dict[str, str], reached: set[str]) -> dict[str, Gate]:
    shut = {gate_of(b.code) for b in blockers}
    return {g: Gate(says[g], "blocked" if g in shut else "ok" if g in reached else "not checked") for g in GATES}


def _tokenizer(ckpt: Checkpoint, made: Compiled | None, report: Report) -> TokenizerFiles | None:
    """The tokenizer; None when it is broken, which blocks, or when there is none, of which a compile only takes note."""
    try:
        text, notes = tokenizer_of(ckpt)
        if text is None and made is not None:
            stop_ids_of(ckpt, made.lowered.hparams["vocab_size"], notes)
    except Diagnostic as err:
        report.blockers.append(err)
        return None
    report.notes += notes
    return text


def _describe(tok: TokenizerFiles | None) -> dict[str, Any]:
    """Kind, source and ids of a tokenizer; empty without one."""
    if tok is None:
        return {}
    kind = json.loads(tok.tokenizer_json)["model"].get("type", "BPE")
    return {"kind": kind, "size": tok.vocab_size, "chat_template": tok.template is not None,
            "chat_templates": list(tok.templates), "stop_ids": list(tok.stop_ids), "adds_bos": tok.add_bos}
