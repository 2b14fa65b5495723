"""`uaii verify ARTIFACT`: whether it computes what its checkpoint means."""
from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from uaii.cli.run import ids_of
from uaii.cli.shell import FORMAT, data, guarded, talk
from uaii.cli.table import pairs, table
from uaii.ir.memory import size

if TYPE_CHECKING:
    from uaii.verification import Report


@click.command()
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--source", type=click.Path(path_type=Path), metavar="MODEL",
              help="The checkpoint it was compiled from. Default: where it was then.")
@click.option("--prompt", help="Text to compare on. Default: a text of ours.")
@click.option("--token-ids", help="The same as ids: 1,2,3.")
@click.option("--tokens", type=click.IntRange(min=1), help="Cut or repeat the text to so many tokens. Default: 24 of ours.")
@click.option("--passes", is_flag=True, help="Evaluate the graph after every pass too, as after a FAIL.")
@click.option("--threads", type=int, help="Of onnxruntime. Default: the physical cores.")
@FORMAT
@guarded
def main(artifact: Path, source: Path | None, prompt: str | None, token_ids: str | None, tokens: int | None, passes: bool,
         threads: int | None, fmt: str) -> None:
    """Verify the folder ARTIFACT: its files, its source, its weights bit for bit, and its logits.

    The logits are compared with those of NumPy in f64 on the checkpoint's own graph, before any pass: for the text at once, in
    two parts, and token by token. Exit code 0 is a PASS, 1 a FAIL, 2 means that the checkpoint is not there to compare with.
    """
    from uaii.verification import verify

    with progress(fmt == "json") as step:
        report = verify(artifact, source, prompt=prompt, token_ids=None if token_ids is None else ids_of(token_ids),
                        tokens=tokens, threads=threads, passes=passes, progress=step)
    if fmt == "json":
        data(report.record())
    else:
        show(report)
    if report.error:
        print(report.error, file=sys.stderr)
    sys.exit(report.exit_code)


@contextmanager
def progress(silent: bool) -> Iterator[Any]:
    """What runs, and a bar over its steps; nothing when stderr is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=talk, disable=silent or not talk.is_terminal, transient=True) as bar:
        task = bar.add_task("verify", total=None)
        yield lambda what, done, total: bar.update(task, completed=done, total=total, description=f"{what:<28.28}")


def show(r: Report) -> None:
    """The report on stdout: what was compared, with which bound, and the verdict."""
    rows: list[tuple[str, object]] = [("files", f"{len(r.files)}, {size(sum(r.files.values()))}: sizes and sha256 as recorded")]
    if r.source:
        rows.append(("source", f"{r.source['path']} ({r.source['family']}, {r.source['format']}): names, sizes and headers as "
                     "recorded"))
    if r.weights:
        w = r.weights
        rows.append(("weights", f"{w.compared - len(w.differing)} of {w.compared} are the checkpoint's, bit for bit"
                     + (f"; {len(w.unlike)} this compiler makes otherwise" if w.unlike else "")))
        rows.append(("graph", "as this compiler writes it" if not w.nodes else f"{len(w.nodes)} differences from what this "
                     f"compiler writes, the first: {w.nodes[0]}"))
    if r.text:
        rows.append(("text", f"{len(r.text.ids)} tokens: "
                     + (json.dumps(r.text.tokenizer.decode(r.text.ids), ensure_ascii=False) if r.text.tokenizer
                        else ",".join(map(str, r.text.ids)))))
    if r.reference:
        rows.append(("reference", "NumPy, f64, on the graph " + ("before any pass" if r.reference == "lower" else
                                                                  f"after {r.reference}, from which on it has a meaning")))
    if r.lost is not None:
        rows.append(("rounding", f"asked for in the compile, not judged: it moves logits by {r.lost:.2g} of their range"))
    pairs(rows)
    if r.runs:
        click.echo()
        _runs(r)
    if r.passes:
        click.echo()
        table(("pass", "applied", "difference", "verdict"),
              [(p.pass_, p.applied, f"{p.difference:.1e}", "ok" if p.ok else "WRONG") for p in r.passes], right=("applied",))
    click.echo()
    for note in r.notes:
        click.echo(f"note: {note}")
    click.echo(f"took {r.seconds:.1f} s, peak memory {size(r.peak_bytes)}")
    click.echo(f"verdict: {r.verdict}")


def _runs(r: Report) -> None:
    assert r.text is not None
    rows = []
    for run in r.runs:
        piece = json.dumps(r.text.piece(run.token), ensure_ascii=False) if r.text.tokenizer else ""
        place = f"{run.position}: {run.token} {piece}".strip() + f" {run.logit:.4f}, not {run.reference:.4f}"
        rows.append((run.run, run.activations, f"{run.difference:.1e}", f"{run.noise:.1e}", f"{run.kl:.1e}",
                     f"{run.same_best:.0%}", place, run.bound, "ok" if run.ok else "FAIL"))
    table(("run", "activations", "difference", "noise", "mean KL", "same best", "largest at position: token", "bound", "verdict"),
          rows, right=("difference", "noise", "mean KL", "same best"))
