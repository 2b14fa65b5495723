"""`uaii-compile MODEL -o DIR`: a checkpoint to an artifact folder."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from uaii.cli.shell import FORMAT, data, guarded, stop_on_sigterm, talk
from uaii.ir.memory import size

WEIGHTS = click.option("--weights", default="auto", show_default=True, metavar="auto|f32|int8|int4",
                       help="auto keeps quantised blocks packed as they are and floats as floats; f32 computes on the values "
                            "that blocks mean; int8 and int4 round floats to blocks of 8 or 4 bits, which loses something.")
TARGET = click.option("--target", default="cpu", show_default=True, help="Device to compile for.")
CONTEXT = click.option("--context", type=int, help="Longest text in tokens. Default: the model's, at most 131072.")
ACCEPT = click.option("--accept-key", "accept", multiple=True, metavar="KEY",
                      help="A config key that uaii does not read and you know to be harmless; recorded in the artifact.")


@click.command()
@click.argument("model", type=click.Path())
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="Artifact folder to write or replace.")
@TARGET
@WEIGHTS
@CONTEXT
@ACCEPT
@FORMAT
@click.option("--quiet", is_flag=True, help="No progress, notes or summary.")
@guarded
def main(model: str, out: Path, target: str, weights: str, context: int | None, accept: tuple[str, ...], fmt: str,
         quiet: bool) -> None:
    """Compile MODEL (a Hugging Face folder or a .gguf file) into the artifact folder OUT."""
    from uaii.compiler import compile_model

    stop_on_sigterm()
    notes: list[str] = []
    with progress(quiet or fmt == "json") as step:
        made = compile_model(model, out, target=target, weights=weights, context=context, accept=accept, progress=step,
                             note=notes.append)
    if fmt == "json":
        data({"artifact": str(out), "notes": notes, **made.summary})
    elif not quiet:
        report(made.folder, made.summary, notes)


@contextmanager
def progress(silent: bool) -> Iterator[Any]:
    """A bar over the bytes of the weights; nothing when stderr is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=talk, disable=silent or not talk.is_terminal, transient=True) as bar:
        task = bar.add_task("weights", total=None)
        yield lambda name, done, total: bar.update(task, completed=done, total=total, description=f"{name:<24.24}")


def report(folder: Path, s: dict[str, Any], notes: list[str]) -> None:
    """The summary, on stderr."""
    for note in notes:
        talk.print(f"note: {note}", markup=False)
    experts = ", ".join(f"{n} tensors {how}" for how, n in s["experts"].items())
    tensors = ", ".join(f"{s[k]} {k}" for k in ("packed", "quantised", "float", "dequantised") if s[k])
    worst = s["worst_error"]
    error = worst and f"at most {100 * worst['rms']:.2g} % of a tensor's values (rms), in {worst['tensor']}"
    for name, value in (
            ("family", f"{s['family']}, {s['layers']} layers, {s['parameters'] / 1e6:.1f} M parameters, context {s['context']}"),
            ("tensors", tensors), ("error", error), ("experts", experts),
            ("bytes", f"{size(s['bytes_in'])} in, {size(s['bytes_out'])} out"),
            ("took", f"{s['seconds']} s, peak memory {size(s['peak_bytes'])}"), ("artifact", str(folder))):
        if value:
            talk.print(f"{name:<9} {value}", markup=False)
