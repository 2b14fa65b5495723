"""A fetched folder looked at as uaii will: whether its files are whole, and whether a compile could take it."""
from __future__ import annotations

import json
from pathlib import Path

from uaii.frontend.family import recognise
from uaii.frontend.gguf import Gguf
from uaii.frontend.hf import HfFolder
from uaii.frontend.hf_weights import find_weights
from uaii.ir.diag import Diagnostic, Malformed
from uaii.ir.loc import File, Stored, leaves

MLA = "kv_lora_rank"


def broken(folder: Path, names: list[str], main: str | None) -> tuple[str, str] | None:
    """The first fetched file that cannot be whole, and why; None when the headers and JSON files are in order.

    `names` are the files of the model; `main` is the GGUF file among them, None for a Hugging Face folder.
    """
    for name in names:
        if name.endswith(".json") and (fault := _json(folder / name)):
            return name, fault
    try:
        faults = _gguf(folder / main) if main else [b for s in find_weights(folder).shards for b in s.blocked]
    except Diagnostic as err:
        faults = [err]
    bad = next((f for f in faults if isinstance(f, Malformed)), None)
    return (_blamed(bad, names, main), bad.says) if bad else None


def _gguf(path: Path) -> list[Diagnostic]:
    return Gguf(path, inspect=True).blocked()


def _json(path: Path) -> str:
    try:
        json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return "it is not whole JSON"
    return ""


def _blamed(err: Malformed, names: list[str], main: str | None) -> str:
    files = [Path(x.file).name for x in leaves(err.where) if isinstance(x, File | Stored)] if err.where else []
    return next((n for n in names if Path(n).name in files), main or names[-1])


def outlook(folder: Path) -> list[str]:
    """What would keep uaii from compiling a Hugging Face folder, from its config.json alone."""
    try:
        found = HfFolder(folder, weights=False, inspect=True)
        faults = found.blocked()
        recognise(found)
    except Diagnostic as err:
        faults = [err]
        if err.code == "F121" and _latent(found.metadata):
            return ["HF MLA; use GGUF: uaii does not compile this folder; pull a GGUF repository of the model instead"]
    return [f"uaii does not compile this model: {f.says}" for f in faults]


def _latent(config: object) -> bool:
    inner = config.get("text_config") if isinstance(config, dict) else None
    return isinstance(config, dict) and (MLA in config or (isinstance(inner, dict) and MLA in inner))
