"""A GGUF model in several files: the other parts found by name, and the set proved complete and of one model."""
from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uaii.frontend.blob import Blob
from uaii.frontend.checkpoint import StoredTensor
from uaii.frontend.gguf_header import Header, read_header
from uaii.frontend.gguf_layout import lay_out
from uaii.ir.diag import Diagnostic, Malformed
from uaii.ir.loc import File

NAME = re.compile(r"(?P<prefix>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf")
SLICE = re.compile(r"(?P<whole>.+\.gguf)[.-](?:part\d+of\d+|(?:split|part)-?[a-z]{1,2}|part\d+|\d{2,3})", re.I)
HINT = "put all parts, from one download, into one folder under the names they were published with"
OWN = ("split.no", "split.count", "split.tensors.count", "general.alignment")  # each file has its own


@dataclass(frozen=True)
class Part:
    """One file of a set, read as far as its header."""

    blob: Blob
    header: Header
    tensors: dict[str, StoredTensor]
    blocked: list[Diagnostic]

    @staticmethod
    def open(path: Path) -> Part:
        """Raises Malformed and Unsupported (see read_header, lay_out), G314 for a byte slice of a file."""
        refuse_slice(path)
        blob = Blob(path)
        header = read_header(blob)
        return Part(blob, header, *lay_out(blob, header))

    def value(self, key: str, *kinds: str) -> Any:
        """A key's value, None when it is absent; raises Malformed G315 when it has none of the kinds."""
        kind = self.header.kinds.get(key)
        if kind is None:
            return None
        if kind not in kinds:
            raise Malformed("G315", f"key {key} has wrong type {kind} but expected type {' or '.join(kinds)}",
                            File(self.blob.name, key), why="llama.cpp refuses the same file",
                            hint="convert the original model again with a current llama.cpp")
        return self.header.metadata[key]


def refuse_slice(path: Path) -> None:
    """Raise Malformed G314 when the name says that the file is a byte slice of a GGUF file (x.gguf.part1of2)."""
    found = SLICE.fullmatch(path.name)
    if found:
        raise Malformed("G314", f"{path.name} is a slice of the bytes of {found['whole']}", File(str(path)),
                        why="only the slices joined in order are a GGUF file",
                        hint=f"join them: cat {found['whole']}* > joined.gguf (check the order), then give that file")


def gather(part: Part) -> list[Part]:
    """All parts of the set that `part` belongs to, first one first; `[part]` for a model in one file.

    Raises Malformed G312 (parts missing, named), G313 (names, numbers or totals disagree, two models mixed), G315, and
    whatever opening a part raises.
    """
    path, found = part.blob.path, NAME.fullmatch(part.blob.path.name)
    no, count = part.value("split.no", "u16"), part.value("split.count", "u16")
    if count is None and found and int(found["count"]) > 1:
        raise _odd(part, f"{path.name} is named as part of a set and has no key split.count", "split.count",
                   "rename the file if it is the whole model")
    if count is None or count < 2:
        return [part]
    if no is None or no >= count:
        raise _odd(part, f"{path.name} is part {no} of {count} by its keys", "split.no")
    if not found or (int(found["no"]), int(found["count"])) != (no + 1, count):
        want = f"{found['prefix'] if found else 'PREFIX'}-{no + 1:05d}-of-{count:05d}.gguf"
        raise _odd(part, f"{path.name} is part {no + 1} of {count} by its keys and must be named {want}", "split.no",
                   "rename it: the parts are found by name")
    names = [f"{found['prefix']}-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
    missing = [name for name in names if not path.with_name(name).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more of {count} parts" if missing[1:] else ""
        raise Malformed("G312", f"missing part {missing[0]}{more}", File(str(path.with_name(missing[0]))),
                        why=f"{path.name} says that the model has {count} parts", hint=HINT, notes=missing[1:9])
    parts = [part if i == no else Part.open(path.with_name(name)) for i, name in enumerate(names)]
    _agree(parts)
    return parts


def _agree(parts: list[Part]) -> None:
    first = parts[0]
    seen: dict[str, Part] = {}
    for i, part in enumerate(parts):
        name = part.blob.path.name
        no, count = part.value("split.no", "u16"), part.value("split.count", "u16")
        if (no, count) != (i, len(parts)):
            raise _odd(part, f"{name} has split.no {no} and split.count {count}, its name says {i} and {len(parts)}",
                       "split.no")
        for key, value in part.header.metadata.items():
            if i and key not in OWN and first.header.metadata.get(key) != value:
                raise _odd(part, f"{name} and {first.blob.path.name} disagree on {key}: they are of two models", key)
        for tensor in part.tensors:
            if tensor in seen:
                raise _odd(part, f"{name} and {seen[tensor].blob.path.name} both hold the tensor {tensor}", tensor)
            seen[tensor] = part
        total = part.value("split.tensors.count", "i32")
        have = sum(len(p.tensors) for p in parts)
        if total is not None and total != have:
            raise _odd(part, f"the {len(parts)} parts hold {have} tensors, {name} says {total}", "split.tensors.count")


def _odd(part: Part, says: str, at: str, hint: str = HINT) -> Malformed:
    return Malformed("G313", says, File(part.blob.name, at), why="tensors of another model would be read", hint=hint)
