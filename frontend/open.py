"""A path from the command line, and the checkpoint that it means."""
from __future__ import annotations

import re
from pathlib import Path

from uaii.frontend.blob import names_in, unreadable
from uaii.frontend.gguf import Gguf
from uaii.frontend.gguf_split import NAME, SLICE
from uaii.frontend.hf import HfFolder
from uaii.ir.diag import Unsupported, Usage
from uaii.ir.loc import File

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
API_ONLY = re.compile(r"(?:(?:openai|google|anthropic)/)?"
                      r"(?:gpt-(?:3\.5|4o?|4\.\d|5(?:\.\d)?)|chatgpt|o[134]|gemini|claude)(?:-[\w.-]+)?", re.I)
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx")


def open_checkpoint(path: Path | str, *, inspect: bool = False) -> Gguf | HfFolder:
    """The checkpoint that a folder or a .gguf file is; with `inspect`, blocked() lists what bars loading.

    Raises Usage U001 (nothing there), U002 (not a checkpoint, or several), U003 (not readable), Unsupported U004 (a
    model without public weights), and whatever Gguf and HfFolder raise.
    """
    path = Path(path)
    try:
        return _open(path, inspect)
    except OSError as err:
        raise unreadable(path, err) from None


def _open(path: Path, inspect: bool) -> Gguf | HfFolder:
    if path.is_dir():
        return _folder(path, inspect)
    if not path.exists():
        refuse_api_only(str(path))
        raise _absent(path)
    if path.suffix.lower() == ".gguf" or SLICE.fullmatch(path.name) or _magic(path) == b"GGUF":
        return Gguf(path, inspect=inspect)
    if path.suffix.lower() in WEIGHTS or path.name.endswith(".json"):
        raise Usage("U002", f"{path.name} is one file of a model: give the folder, {path.parent}", File(str(path)),
                    why="the weights mean nothing without config.json", hint=f"use {path.parent}")
    raise Usage("U002", f"{path.name} is not a checkpoint", File(str(path)),
                why="a checkpoint is a model folder or a .gguf file", hint="give one of these")


def refuse_api_only(name: str) -> None:
    """Raise Unsupported U004 for the name of a model that exists behind an API only."""
    if API_ONLY.fullmatch(name):
        raise Unsupported("U004", f"{name} is an API-only model: no weights exist",
                          why="its publisher runs it and does not give it away", hint="use gpt-oss or GPT-2, or Gemma")


def _folder(path: Path, inspect: bool) -> Gguf | HfFolder:
    if (path / "uaii.json").exists():
        raise Usage("U002", f"{path} is a compiled artifact, not a checkpoint", File(str(path / "uaii.json")),
                    hint="give the model that it was compiled from, or uaii-run this folder")
    names = names_in(path)
    files = [n for n in names if n.lower().endswith(".gguf")]
    slices = [n for n in names if SLICE.fullmatch(n)]
    if any(n.endswith((".safetensors", ".safetensors.index.json")) for n in names) or not files + slices:
        folder = HfFolder(path, inspect=inspect)
        folder.notes += [f"{n} ignored: the folder has safetensors" for n in files + slices]
        return folder
    sets: dict[str, str] = {}
    for name in files:
        part = NAME.fullmatch(name)
        sets.setdefault(f"{part['prefix']}-{part['count']}" if part else name, name)
    if len(sets) > 1:
        raise Usage("U002", f"{path} holds {len(sets)} GGUF models: {', '.join([*sets.values()][:8])}", File(str(path)),
                    hint="give one of the files")
    return Gguf(path / [*files, *slices][0], inspect=inspect)


def _absent(path: Path) -> Usage:
    beside = names_in(path.parent) if path.parent.is_dir() else []
    slices = [n for n in beside if n.startswith(path.name) and SLICE.fullmatch(n)]
    if slices:
        hint = f"{slices[0]} is there: join the slices, cat {path.name}* > {path.name}"
    elif HUB_ID.fullmatch(str(path)):
        hint = f"if it is a repository on the Hugging Face Hub: uaii pull {path}"
    else:
        hint = "check the spelling and the current folder"
    return Usage("U001", f"{path} does not exist", File(str(path)), hint=hint)


def _magic(path: Path) -> bytes:
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(4)
