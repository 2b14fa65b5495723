"""`uaii generate --model MODEL`: compile into the cache when it is not there yet, then run."""
from __future__ import annotations

import hashlib
import importlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from uaii import __version__
from uaii.cli.compile import ACCEPT, TARGET, WEIGHTS, progress
from uaii.cli.demo import cache_dir
from uaii.cli.pull import OFFLINE, QUANT, REVISION, pull_into
from uaii.cli.run import asked, respond
from uaii.cli.shell import FORMAT, guarded, stop_on_sigterm, talk
from uaii.ir.diag import Diagnostic

COMPILER = ("ir", "frontend", "passes", "backends")  # the rooms whose code decides what an artifact holds
BULKY = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".onnx")


@click.command()
@click.option("--model", required=True, metavar="PATH|REPO", help="A folder, a .gguf file, or owner/name on the hub.")
@REVISION
@QUANT
@OFFLINE
@TARGET
@WEIGHTS
@ACCEPT
@click.option("--dry-run", is_flag=True, help="Report what a compile would meet, as uaii inspect does, and stop.")
@asked
@FORMAT
@guarded
def main(model: str, revision: str | None, quant: str | None, offline: bool, target: str, weights: str, accept: tuple[str, ...],
         dry_run: bool, fmt: str, quiet: bool, context: int | None, **options: Any) -> None:
    """Generate text from a checkpoint: compiled once into the cache folder, then run as uaii-run does."""
    from uaii.compiler import MAX_CONTEXT

    stop_on_sigterm()
    silent = quiet or fmt == "json"
    compiling = {"target": target, "weights": weights, "accept": accept,
                 "context": context if context is not None and context > MAX_CONTEXT else None}
    if dry_run:
        from uaii.cli.inspect import main as inspect
        assert inspect.callback is not None  # a click command always has one
        inspect.callback(model=str(source(model, revision, quant, offline, silent)), fmt=fmt, **compiling)
        return
    respond(lambda: compiled(source(model, revision, quant, offline, silent), compiling, silent), fmt=fmt, quiet=quiet,
            context=context, **options)


def source(model: str, revision: str | None, quant: str | None, offline: bool, silent: bool) -> Path:
    """The checkpoint on disk: the path that was given, or a repository pulled into the cache.

    A path that exists wins over a repository of that name. Raises Usage U001 and what pull raises.
    """
    from uaii.frontend.open import HUB_ID

    if Path(model).exists() or not HUB_ID.fullmatch(model) or model.endswith((".gguf", ".safetensors", ".onnx")):
        return Path(model)

    def note(text: str) -> None:
        if not silent:
            talk.print(f"note: {text}", markup=False)

    note(f"there is no {model} here: looking on the hub")
    parts = [model.replace("/", "--"), *([revision.replace("/", "--")] if revision else [])]
    place = cache_dir() / "models" / "@".join(parts)
    return pull_into(model, lambda _: place, revision=revision, quant=quant, offline=offline, note=note, silent=silent).model


def compiled(path: Path, options: dict[str, Any], silent: bool) -> Path:
    """The artifact of a checkpoint in the cache, compiled now if it is not there; it appears there whole or not at all."""
    from uaii.compiler import compile_model

    out, there = cached(path, options)
    if there:
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    with progress(silent) as step:
        compile_model(path, out, **options, progress=step, note=notes.append)
    for text in [] if silent else [*notes, f"compiled into {out}"]:
        talk.print(f"note: {text}", markup=False)
    return out


def cached(path: Path, options: dict[str, Any]) -> tuple[Path, bool]:
    """The place of a checkpoint's artifact in the cache, and whether a whole one is there."""
    from uaii.backends.ort.manifest import read_manifest

    out = cache_dir() / "artifacts" / f"{path.resolve().stem[:64]}-{key(path, options)}"
    with suppress(Diagnostic):  # absent, or damaged since
        read_manifest(out)
        return out, True
    return out, False


def key(path: Path, options: dict[str, Any]) -> str:
    """A name for what a compile depends on: the source's fingerprint, its files, the options, uaii and its code.

    The fingerprint covers headers; weights under an unchanged header show in their file's time. Raises what opening does.
    """
    from uaii.frontend.open import open_checkpoint

    checkpoint = open_checkpoint(path)
    folder = checkpoint.path if checkpoint.format == "hf" else None
    beside = [*folder.glob("[!.]*"), *folder.glob("additional_chat_templates/*")] if folder else []
    files = {t.file for t in checkpoint.tensors.values()} | {p for p in beside if p.is_file() and p.suffix not in BULKY}
    said = {"uaii": __version__, "code": _code(), "options": options, "source": checkpoint.fingerprint(),
            "files": sorted(_stamp(p) for p in files)}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:24]


def _code() -> list[tuple[str, int, int]]:
    """The compiler's own modules: a checkout changes without its version."""
    rooms = [Path(p) for room in COMPILER for p in importlib.import_module(f"uaii.{room}").__path__]
    return sorted(_stamp(p.resolve()) for room in rooms for p in room.rglob("*.py"))


def _stamp(path: Path) -> tuple[str, int, int]:
    at = path.stat()
    return str(path.resolve()), at.st_size, at.st_mtime_ns
