"""The artifact folder as its manifest `uaii.json` states it: read, checked and refused before anything runs."""
from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from uaii.ir.diag import Malformed, Unsupported
from uaii.ir.loc import File, Key

NAME = "uaii.json"
GRAPH = "model.onnx"
FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """What the run side reads of uaii.json.

    `kv_heads` and `head_dim` are None when the layers differ; the graph's own shapes are the truth then.
    `kv_in_place` says that past and present of a layer may be one buffer. `kv_latent` says that its key and value are the same
    rows, so that one buffer holds both; absent means false. `kv_windows` has for each layer the window in tokens before which
    its keys need not be handed over, 0 where all are needed; absent means that every layer needs all. `whole_prompt` says that
    a token's logits depend on how long its own call makes the sequence (rope of type dynamic), so a prompt runs alone and in
    one call; absent means false. `rope_switch` is the length in tokens beyond which all keys of a text are rotated otherwise
    (rope of type longrope), so that a cache serves one side of it; None means that there is none. `files` are names and sizes
    in bytes.
    """

    family: str
    target: str
    context_length: int
    vocab_size: int
    layers: int
    kv_heads: int | None
    head_dim: int | None
    kv_in_place: bool
    kv_latent: bool
    kv_windows: tuple[int, ...]
    whole_prompt: bool
    rope_switch: int | None
    stop_ids: tuple[int, ...]
    files: dict[str, int]


def read_manifest(folder: Path, *, hashes: bool = False) -> Manifest:
    """The checked manifest of an artifact folder; sizes of its files are always compared, sha256 only with `hashes`.

    Raises Malformed (S601 incomplete artifact, S603 an entry that is wrong) and Unsupported (S602 another format).
    Symbolic links are followed, so that a Hugging Face cache folder loads; names that leave the folder are refused.
    """
    raw = _json(folder)
    if raw.get("format") != FORMAT or isinstance(raw.get("format"), bool):
        shown = json.dumps(raw.get("format"))
        raise Unsupported("S602", f"the artifact has format {shown}; this version of uaii runs format {FORMAT}",
                          Key(NAME, "format", shown), hint="compile the checkpoint again with this version")
    if raw.get("complete") is not True:
        raise _incomplete(folder, ["the compile that wrote it did not finish"])
    files = _files(folder, raw, hashes)
    entry = _Entries(raw)
    vocab = entry.integer("vocab_size", 1)
    return Manifest(entry.text("family"), entry.text("target"), entry.integer("context_length", 1), vocab,
                    entry.integer("layers", 1), entry.optional("kv_heads"), entry.optional("head_dim"),
                    entry.flag("kv_in_place"), "kv_latent" in raw and entry.flag("kv_latent"),
                    entry.windows("kv_windows", entry.integer("layers", 1)),
                    "whole_prompt" in raw and entry.flag("whole_prompt"),
                    entry.optional("rope_switch"), entry.ids("stop_ids", vocab), files)


def _incomplete(folder: Path, notes: list[str]) -> Malformed:
    return Malformed("S601", f"incomplete artifact: {folder}", File(str(folder)), notes=notes,
                     hint="compile the checkpoint again, or copy the whole folder")


def _json(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise _incomplete(folder, ["there is no such folder"])
    path = folder / NAME
    if not path.is_file():
        raise _incomplete(folder, [f"{NAME} is missing"])
    try:
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise _incomplete(folder, [f"{NAME} cannot be read: {error.strerror}"]) from None
    except (ValueError, RecursionError) as error:
        raise _incomplete(folder, [f"{NAME} is not JSON: {error}"]) from None
    if not isinstance(raw, dict):
        raise _incomplete(folder, [f"{NAME} holds no JSON object"])
    return raw


def _files(folder: Path, raw: dict[str, Any], hashes: bool) -> dict[str, int]:
    """Names and sizes of the listed files, after every fault of them has been gathered into one refusal."""
    listed = raw.get("files")
    if not isinstance(listed, dict):
        raise _incomplete(folder, [f"{NAME} lists no files"])
    sizes: dict[str, int] = {}
    faults = [] if GRAPH in listed else [f"{GRAPH} is not among the files of {NAME}"]
    for name, facts in listed.items():
        size = facts.get("bytes") if isinstance(facts, dict) else None
        if not _inside(name) or type(size) is not int:
            raise Malformed("S603", f"{NAME} has a wrong entry for the file {name!r}",
                            Key(NAME, f"files.{name}", json.dumps(facts)),
                            why="names stay inside the folder and each has its size in bytes")
        sizes[name] = size
        faults += _file_faults(folder / name, name, size, str(facts.get("sha256", "")) if hashes else None)
    if faults:
        raise _incomplete(folder, faults)
    return sizes


def _inside(name: str) -> bool:
    windows = PureWindowsPath(name)
    return bool(name) and not windows.anchor and "\0" not in name and ".." not in PurePosixPath(name).parts \
        and ".." not in windows.parts


def _file_faults(path: Path, name: str, size: int, sha256: str | None) -> list[str]:
    if not path.is_file():
        return [f"{name} is missing"]
    actual = path.stat().st_size
    if actual != size:
        return [f"{name} has {actual} bytes, {NAME} says {size}"]
    if sha256 is None:
        return []
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return [] if digest == sha256 else [f"{name} has sha256 {digest}, {NAME} says {sha256 or 'nothing'}"]


class _Entries:
    """Typed access to the manifest's entries; a wrong one is refused by name."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw

    def wrong(self, key: str, wanted: str) -> Malformed:
        shown = json.dumps(self.raw[key]) if key in self.raw else "absent"
        return Malformed("S603", f"{NAME}: {key} must be {wanted}", Key(NAME, key, shown),
                         hint="compile the checkpoint again; the manifest is not meant to be edited")

    def text(self, key: str) -> str:
        value = self.raw.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "text")
        return value

    def integer(self, key: str, least: int) -> int:
        value = self.raw.get(key)
        if type(value) is not int or value < least:
            raise self.wrong(key, f"a whole number of at least {least}")
        return value

    def optional(self, key: str) -> int | None:
        return None if self.raw.get(key) is None else self.integer(key, 1)

    def flag(self, key: str) -> bool:
        value = self.raw.get(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def windows(self, key: str, layers: int) -> tuple[int, ...]:
        value = self.raw.get(key, [])
        if not isinstance(value, list) or any(type(x) is not int or x < 0 for x in value) or len(value) not in (0, layers):
            raise self.wrong(key, f"a list of {layers} whole numbers")
        return tuple(value)

    def ids(self, key: str, vocab: int) -> tuple[int, ...]:
        value = self.raw.get(key)
        if not isinstance(value, list) or any(type(x) is not int or not 0 <= x < vocab for x in value):
            raise self.wrong(key, f"a list of token ids below {vocab}")
        return tuple(value)
