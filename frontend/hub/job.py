"""One pull at work in its hidden folder: what is kept, what is fetched, and the proof that all of it is whole."""
from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from uaii.frontend.hub import check
from uaii.frontend.hub.choose import Choice
from uaii.frontend.hub.http import Client, Failed, Refused
from uaii.frontend.hub.listing import Listing, access, inside
from uaii.frontend.hub.record import Done, Record, read_record
from uaii.frontend.hub.sources import Meter, Source
from uaii.frontend.hub.workplace import keep, sweep
from uaii.frontend.jsonfile import read_object
from uaii.ir.diag import Malformed, Usage
from uaii.ir.loc import File

Note = Callable[[str], None]
WEIGHTS = (".safetensors", ".gguf")


@dataclass
class Job:
    """One pull at work in its hidden folder."""

    client: Client
    source: Source
    listing: Listing
    choice: Choice
    work: Path
    out: Path
    before: Record | None
    meter: Meter
    fetched: list[str] = field(default_factory=list)
    record: Record = field(init=False)
    names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.names, self.record = list(self.choice.names), Record(self.listing)

    def gather(self, note: Note) -> None:
        """All files: the texts first, since they say which weights there are and whether they are of use."""
        texts = [n for n in self.names if not n.lower().endswith(WEIGHTS)]
        weights = [n for n in self.names if n not in texts]
        self._forget_other_content()
        self._bring(texts)
        if self.choice.index:
            weights = shards(self.work / self.choice.index)
            self.names += [n for n in weights if n not in self.names]
        if weights and not self.choice.main and (self.work / "config.json").is_file():
            for text in check.outlook(self.work):
                note(text)
        self._room(weights)
        self._bring(weights)
        sweep(self.work, set(self.names))

    def _forget_other_content(self) -> None:
        """Parts of an interrupted pull stay only where they are of the same content."""
        kept = read_record(self.work)
        names = {e.name for e in kept.listing.files if kept.same(e.name, self.listing)} if kept else set()
        sweep(self.work, names)
        self.record.done = {n: d for n, d in kept.done.items() if n in names and (self.work / n).is_file()} if kept else {}
        self.record.save(self.work)

    def _bring(self, names: Sequence[str]) -> None:
        lacking = []
        for name in names:
            entry = self.listing.entry(name)
            self.meter.sizes[name] = entry.size or 0
            if self.before and self.before.same(name, self.listing) and self.before.intact(self.out, name):
                keep(self.out, name, self.work)
                self.record.done[name] = self.before.done[name]
            if self.record.intact(self.work, name):
                self.meter.tick(name, self.record.done[name].size, self.record.done[name].size)
            else:
                lacking.append(entry)
        try:
            self.source.bring(self.listing, lacking, self.work, self.meter, self._arrived)
        except Refused as no:
            if no.status in (401, 403):
                raise access(self.client, self.listing.repo, no) from None
            raise incomplete(no.name, f"the hub answered HTTP status {no.status}") from None
        except Failed as err:
            raise incomplete(err.name, str(err)) from None

    def _arrived(self, name: str, done: Done) -> None:
        self.record.done[name] = done
        self.fetched.append(name)
        self.record.save(self.work)

    def _room(self, names: Sequence[str]) -> None:
        there = {p: p.stat().st_size for n in names for p in (self.work / n, self.work / f"{n}.uaii-part") if p.is_file()}
        need = sum(self.listing.entry(n).size or 0 for n in names) - sum(there.values())
        free = shutil.disk_usage(self.work).free
        if self.before is None and need > free:
            raise Usage("N711", f"{need / 1e9:.1f} GB are to come and {free / 1e9:.1f} GB are free", File(str(self.out.parent)),
                        hint="make room, or choose another place with --outdir")

    def prove(self, note: Note) -> None:
        """Raises Malformed N709 when a file that the hub gave no sha256 for is not whole; a proved one is only noted."""
        if not self.choice.main and self.choice.names and not self._is_folder():
            return
        found = check.broken(self.work, self.names, self.choice.main)
        if found is None:
            return
        name, why = found
        if self.record.done[name].proved:
            note(f"{name} is as published, and yet: {why}")
            return
        (self.work / name).unlink()
        del self.record.done[name]
        self.record.save(self.work)
        raise incomplete(name, why)

    def _is_folder(self) -> bool:
        return "config.json" in self.names and any(n.endswith(WEIGHTS) for n in self.names)


def shards(index: Path) -> list[str]:
    """The files that an index names, each once. Raises Malformed N706 for a name that is none, N709 for a broken index."""
    placed = read_object("N709", index).get("weight_map")
    if not isinstance(placed, dict) or not placed or not all(isinstance(v, str) for v in placed.values()):
        raise Malformed("N709", f"pull incomplete: {index.name} names no shards", File(str(index), "weight_map"),
                        hint="tell the publisher, or take another repository")
    return [inside(n, index.name) for n in dict.fromkeys(placed.values())]


def incomplete(name: str, why: str) -> Malformed:
    """The refusal to call a folder complete."""
    what = "shard" if name.lower().endswith(WEIGHTS) else "file"
    return Malformed("N709", f"pull incomplete: missing {what} {name}", why=why,
                     hint="run the same command again: what has arrived is kept")
