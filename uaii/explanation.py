"""Answers about a compile: from a checkpoint by compiling it in memory, from an artifact by its manifest."""
from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uaii import __version__, measure
from uaii.backends.onnx.emit import emit
from uaii.backends.ort.manifest import NAME, read_manifest
from uaii.compiler import Compiled, begin, rewrite
from uaii.frontend.open import open_checkpoint
from uaii.ir.core import Graph
from uaii.ir.diag import Diagnostic, Malformed, Usage
from uaii.ir.loc import File, Key
from uaii.ir.text import show
from uaii.ir.view import dot
from uaii.record import record

ENTRIES = {"family": str, "options": dict, "sources": dict, "account": list, "tensors": list, "pipeline": list,
           "journal": list, "weights": dict, "origins": dict}


@dataclass
class Explanation:
    """What a compile did and why. `record` is the explaining part of a manifest; `stopped` is the error that ended a
    checkpoint's pipeline, which is explained as far as it went."""

    record: dict[str, Any]
    compiled: Compiled | None = None
    stopped: Diagnostic | None = None
    notes: list[str] = field(default_factory=list)

    def graphs(self) -> list[tuple[str, Graph]]:
        """The graph after every pass; an artifact's source is compiled again in memory.

        Raises Usage U042 when the source is gone, U043 when it is another file by now.
        """
        if self.compiled is None:
            self.compiled = self._again()
        return self.compiled.snapshots

    def _again(self) -> Compiled:
        said, options = self.record["sources"], self.record["options"]
        path = Path(str(said.get("path", "")))
        if not said.get("path") or not path.exists():
            raise Usage("U042", f"this question needs the graphs, and the artifact's source is not there: {path}",
                        File(str(path)), hint="put the checkpoint back, or give the checkpoint instead of the artifact")
        made = begin(open_checkpoint(path), target=options["target"], weights=options["weights"], context=options["context"],
                     accept=tuple(options["accept"]))
        if made.checkpoint.fingerprint() != {k: v for k, v in said.items() if k != "path"}:
            raise Usage("U043", f"{path} is not the file that the artifact was compiled from", File(str(path)),
                        why="graphs of another checkpoint would explain another artifact", hint="compile it again")
        if self.record.get("uaii") != __version__:
            self.notes.append(f"compiled by uaii {self.record.get('uaii')}; the graphs are those of {__version__}")
        return rewrite(made, keep=True)

    def ir(self, pass_: str, locs: bool = False) -> str:
        """The graph's text after a pass. Raises Usage U040 for a pass that did not run."""
        graphs = self.graphs()
        return show(graphs[_place(pass_, [n for n, _ in graphs])][1], locs)

    def diff(self, pass_: str) -> str:
        """A unified diff of the graph's text before and after a pass, empty when it changed nothing."""
        graphs = self.graphs()
        at = _place(pass_, [n for n, _ in graphs][1:]) + 1
        before, after = (show(g).splitlines(keepends=True) for _, g in graphs[at - 1:at + 1])
        return "".join(difflib.unified_diff(before, after, f"before {pass_}", f"after {pass_}"))

    def why_not(self, pass_: str) -> list[dict[str, Any]]:
        """Why a pass declined: each reason once, with the places it was given for, the most frequent first."""
        ran = [s["pass_"] for s in self.record["pipeline"]]
        ran += [e["pass_"] for e in self.record["journal"] if e["pass_"] not in ran]
        _place(pass_, ran)
        found: dict[str, list[str]] = {}
        for e in self.record["journal"]:
            if e["pass_"] == pass_ and not e["applied"]:
                found.setdefault(e["says"], []).append(e["at"])
        return [{"says": says, "count": len(at), "at": at} for says, at in sorted(found.items(), key=lambda x: -len(x[1]))]

    def dot(self) -> str:
        """The last graph as Graphviz text."""
        return dot(self.graphs()[-1][1])

    def summary(self) -> dict[str, Any]:
        """Family, sizes and counts. Bytes are of stored tensors, of the artifact's weights, of what a token reads, and of what
        the cache keeps of it."""
        r, last = self.record, self.record["pipeline"][-1]
        keys, held = [row["use"] for row in r["account"]], [row["held"] for row in r["tensors"]]
        out = {k: r.get(k) for k in ("family", "layers", "kv_heads", "head_dim", "vocab_size", "context_length", "target")}
        out |= {"weights": r["options"].get("weights"), "source": r["sources"].get("path"), "stage": last["stage"],
                "ops": last["ops"], "nodes": len(r["origins"]) or None}
        out |= {f"keys_{u}": keys.count(u) for u in dict.fromkeys(keys)}
        out |= {f"tensors_{h.split()[0]}": held.count(h) for h in dict.fromkeys(held)}
        losses = [t for t in r["tensors"] if t.get("error")]
        if losses:
            worst = max(losses, key=lambda t: t["error"]["rms"])
            out["worst_error"] = f"{lost(worst)}: {worst['tensor']}"
        out |= {"bytes_in": sum(t["bytes"] for t in r["tensors"]), "read_per_token": last["read_per_token"],
                "kv_per_token": r.get("kv_bytes_per_token")}
        if self.compiled is not None:
            out["bytes_out"] = measure.stored(self.compiled.graph)
        elif "model.onnx.data" in r.get("files", {}):
            out["bytes_out"] = r["files"]["model.onnx.data"]["bytes"]
        return out


def is_artifact(path: Path) -> bool:
    """Whether the path is an artifact folder, whole or not."""
    return path.is_dir() and (path / NAME).exists()


def explain(path: Path | str, *, target: str = "cpu", weights: str = "auto", context: int | None = None,
            accept: Sequence[str] = ()) -> Explanation:
    """Explains a checkpoint under compile's options, or an artifact under those it was compiled with.

    Reads no weights. Raises what compile raises before its first pass, and for an artifact Malformed S601, S603 and
    Unsupported S602.
    """
    if is_artifact(Path(path)):
        return _artifact(Path(path))
    made = begin(open_checkpoint(path), target=target, weights=weights, context=context, accept=tuple(accept))
    stopped, nodes = None, {}
    try:
        nodes = emit(rewrite(made, keep=True).graph)[1].origins
    except Diagnostic as err:
        stopped = err
    return Explanation(record(made, nodes), made, stopped)


def _artifact(folder: Path) -> Explanation:
    read_manifest(folder)
    raw = json.loads((folder / NAME).read_bytes())
    for name, kind in ENTRIES.items():
        if not isinstance(raw.get(name), kind):
            raise Malformed("S603", f"{NAME} has no usable entry {name}", Key(NAME, name, json.dumps(raw.get(name))[:80]),
                            hint="compile the checkpoint again with this version")
    return Explanation(raw)


def _place(name: str, ran: Sequence[str]) -> int:
    if name not in ran:
        raise Usage("U040", f"no pass {name} has run here" + near(name, ran), hint=f"passes: {', '.join(ran)}")
    return ran.index(name)


def lost(tensor: dict[str, Any]) -> str:
    """What rounding took from a tensor of a record, as parts of its values' root mean square; empty where nothing was rounded."""
    if tensor["held"] != "quantised":
        return ""
    loss = tensor["error"]
    return f"{100 * loss['rms']:.3g} % rms, {100 * loss['largest']:.3g} % largest" if loss else "measured by a compile"


def near(name: str, names: Iterable[str]) -> str:
    """A clause that suggests the names most like `name`; empty when none is."""
    close = difflib.get_close_matches(name, list(dict.fromkeys(names)), 4, 0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""
