"""Ways to bring files into a folder: huggingface_hub, uaii's own requests, or the program hf. All are verified alike."""
from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from uaii.frontend.hub.download import Download, settle
from uaii.frontend.hub.http import Client, Failed, Refused, Transient
from uaii.frontend.hub.library import fill
from uaii.frontend.hub.listing import Entry, Listing
from uaii.frontend.hub.package import RANGE, find
from uaii.frontend.hub.record import Done
from uaii.ir.diag import Usage

Progress = Callable[[str, int, int], None]  # name, bytes so far of all files, bytes of all files


@dataclass
class Meter:
    """Bytes of all files together, for a progress bar; sizes become known as the hub states them."""

    show: Progress
    sizes: dict[str, int] = field(default_factory=dict)
    have: dict[str, int] = field(default_factory=dict)

    def tick(self, name: str, at: int, size: int | None) -> None:
        """So many bytes of a file have arrived."""
        self.have[name] = at
        self.sizes[name] = max(at, size or 0)
        self.show(name, sum(self.have.values()), sum(self.sizes.values()))


class Source(Protocol):
    """Brings files of a listing into a folder, one at a time, and says for each how it was verified.

    `via` says who has moved bytes, `notes` what a person may want to know of it.
    """

    via: list[str]
    notes: list[str]

    def bring(self, listing: Listing, entries: Sequence[Entry], folder: Path, meter: Meter,
              done: Callable[[str, Done], None]) -> None:
        """Raises Refused and Failed with the name of the file, Usage N711, N712."""


@dataclass
class Plain:
    """uaii's own requests."""

    client: Client
    via: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def bring(self, listing: Listing, entries: Sequence[Entry], folder: Path, meter: Meter,
              done: Callable[[str, Done], None]) -> None:
        """See Source."""
        for e in entries:
            url = self.client.endpoint.file(listing.repo, listing.commit or listing.revision, e.name)

            def tick(at: int, size: int | None, name: str = e.name) -> None:
                meter.tick(name, at, size)

            try:
                done(e.name, self.fetch(Download(self.client, url, e, folder / e.name, tick)))
            except (Refused, Failed) as err:
                err.name = e.name
                raise

    def fetch(self, download: Download) -> Done:
        """Brings one file. Raises Refused, Failed; Usage N711."""
        done = download.run()
        if download.asked:
            self.used("https")
        return done

    def used(self, name: str) -> None:
        """Takes down who moves bytes."""
        self.via += [] if name in self.via else [name]


@dataclass
class Library(Plain):
    """The package huggingface_hub makes the first try of every file, until one fails; uaii's own requests make all others.

    `must`: its absence is an error.
    """

    must: bool = False
    package: Any = None
    over: bool = False

    def bring(self, listing: Listing, entries: Sequence[Entry], folder: Path, meter: Meter,
              done: Callable[[str, Done], None]) -> None:
        """See Source."""
        self.package = self.package or find()
        if self.package is None and self.must:
            raise Usage("N712", f"huggingface_hub is not installed in a version {RANGE}",
                        hint=f'pip install "huggingface_hub{RANGE}", or --via https')
        super().bring(listing, entries, folder, meter, done)

    def fetch(self, download: Download) -> Done:
        """Brings one file. Raises Refused, Failed; Usage N711."""
        if self.package is not None and not self.over and not download.have():
            download.first = self._first
        return super().fetch(download)

    def _first(self, download: Download) -> None:
        self.used("huggingface_hub")
        try:
            fill(self.package, download)
        except (Refused, Failed):
            raise
        except Exception as err:  # whatever the package raises; its text may hold a signed address
            lost = err if isinstance(err, Transient) else Transient(f"huggingface_hub gave up ({type(err).__name__})")
            self.notes.append(f"{download.entry.name}: {lost}; from there on by uaii's own requests")
            self.over = True
            raise lost from None


@dataclass
class Program:
    """The command `hf`, or the older huggingface-cli, as it is found on PATH."""

    client: Client
    via: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def bring(self, listing: Listing, entries: Sequence[Entry], folder: Path, meter: Meter,
              done: Callable[[str, Done], None]) -> None:
        """See Source."""
        program = shutil.which("hf") or shutil.which("huggingface-cli")
        if program is None:
            raise Usage("N712", "neither hf nor huggingface-cli is on PATH", hint="pip install huggingface_hub, or --via https")
        names = [e.name for e in entries]
        call = [program, "download", listing.repo, *names, "--revision", listing.commit or listing.revision, "--local-dir",
                str(folder)]
        token = {"HF_TOKEN": self.client.endpoint.token} if self.client.endpoint.token else {}
        ended = subprocess.run(call, env={**os.environ, "HF_ENDPOINT": self.client.endpoint.url, **token},
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if ended.returncode:
            absent = next((n for n in names if not (folder / n).is_file()), names[0])
            raise Failed(f"{Path(program).name} ended with code {ended.returncode}", absent)
        for e in entries:
            done(e.name, _settled(folder, e, meter))
        self.via = [Path(program).name]


def _settled(folder: Path, entry: Entry, meter: Meter) -> Done:
    path = folder / entry.name
    if not path.is_file():
        raise Failed("the program said that it was done and did not write it", entry.name)
    try:
        found = settle(path, path, entry)
    except (Transient, Failed) as err:
        raise Failed(str(err), entry.name) from None
    meter.tick(entry.name, found.size, found.size)
    return found


def source(via: str, client: Client) -> Source:
    """Who moves the bytes: `auto` is huggingface_hub where it is there in a version that was tested, else uaii itself."""
    if via in ("auto", "huggingface_hub"):
        return Library(client, must=via != "auto")
    return Program(client) if via == "hf" else Plain(client)
