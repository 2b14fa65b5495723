"""The record that a pull keeps in its folder: what the hub listed, and what was found on disk when it was verified."""
from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from uaii.frontend.hub.listing import Entry, Listing

RECORD = ".uaii-pull.json"
FORMAT = 1


@dataclass(frozen=True)
class Done:
    """A verified file: size in bytes, sha256, modification time in ns, and whether the hub had stated that sha256."""

    size: int
    sha256: str
    mtime: int
    proved: bool


@dataclass
class Record:
    """One pull: the listing it went by, and its verified files by name."""

    listing: Listing
    done: dict[str, Done] = field(default_factory=dict)

    def intact(self, folder: Path, name: str) -> bool:
        """Whether the file is there as it was verified; one that was touched since is read again."""
        done = self.done.get(name)
        path = folder / name
        if done is None or not path.is_file() or path.stat().st_size != done.size:
            return False
        return path.stat().st_mtime_ns == done.mtime or digest(path) == done.sha256

    def same(self, name: str, now: Listing) -> bool:
        """Whether another listing means the same content by a name."""
        old, new = self.listing.entry(name), now.entry(name)
        commit = self.listing.commit
        pinned = commit == now.commit and (commit is not None or self.listing.revision == now.revision)
        known = pinned or old.sha256 is not None or old.blob is not None
        return self.listing.repo == now.repo and known and replace(old, name="") == replace(new, name="")

    def save(self, folder: Path) -> None:
        """Written whole: a reader sees the old record or the new one."""
        data = {"format": FORMAT, "listing": asdict(self.listing), "done": {k: asdict(v) for k, v in self.done.items()}}
        temp = folder / f"{RECORD}.new"
        temp.write_text(json.dumps(data, indent=1), "utf-8")
        os.replace(temp, folder / RECORD)


def read_record(folder: Path) -> Record | None:
    """The record of a folder; None when there is none that can be read."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        raw: dict[str, Any] = json.loads((folder / RECORD).read_text("utf-8"))
        said = raw["listing"]
        listing = Listing(str(said["repo"]), str(said["revision"]), said["commit"], tuple(Entry(**e) for e in said["files"]))
        if raw["format"] == FORMAT:
            return Record(listing, {str(k): Done(**v) for k, v in raw["done"].items()})
    return None


def digest(path: Path) -> str:
    """The sha256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
