"""Ways to bring files into a folder: uaii's own requests, or a tool of the hub's publisher. All are verified alike."""
from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from uaii.frontend.hub.download import Download, settle
from uaii.frontend.hub.http import Client, Failed, Refused, Transient
from uaii.frontend.hub.listing import Entry, Listing
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
    """Brings files of a listing into a folder, one at a time, and says for each how it was verified."""

    def bring(self, listing: Listing, entries: Sequence[Entry], folder: Path, meter: Meter,
              done: Callable[[str, Done], None]) -> None:
        """Raises Refused and Failed with the name of the file, Usage N711, N712."""


@dataclass
class Plain:
    """uaii's own requests."""

    client: Client

    def bring(self, listing: Listing, entries: Sequence[Entry], folder: Path, meter: Meter,
              done: Callable[[str, Done], None]) -> None:
        """See Source."""
        for e in entries:
            url = self.client.endpoint.file(listing.repo, listing.commit or listing.revision, e.name)

            def tick(at: int, size: int | None, name: str = e.name) -> None:
                meter.tick(name, at, size)

            try:
                done(e.name, Download(self.client, url, e, folder / e.name, tick).run())
            except (Refused, Failed) as err:
                err.name = e.name
                raise


@dataclass
class Library:
    """The package huggingface_hub, which knows the hub's own transfer protocol."""

    client: Client

    def bring(self, listing: Listing, entries: Sequence[Entry], folder: Path, meter: Meter,
              done: Callable[[str, Done], None]) -> None:
        """See Source."""
        try:
            hub: Any = importlib.import_module("huggingface_hub")
        except ImportError:
            raise Usage("N712", "huggingface_hub is not installed", hint="pip install huggingface_hub, or --via plain") from None
        for e in entries:
            try:
                hub.hf_hub_download(listing.repo, e.name, revision=listing.commit or listing.revision, local_dir=folder,
                                    endpoint=self.client.endpoint.url, token=self.client.endpoint.token or False)
            except Exception as err:  # whatever it raises is a failed download; its text may hold a signed address
                raise Failed(f"huggingface_hub gave up ({type(err).__name__})", e.name) from None
            done(e.name, _settled(folder, e, meter))


@dataclass
class Program:
    """The command `hf`, or the older huggingface-cli, as it is found on PATH."""

    client: Client

    def bring(self, listing: Listing, entries: Sequence[Entry], folder: Path, meter: Meter,
              done: Callable[[str, Done], None]) -> None:
        """See Source."""
        program = shutil.which("hf") or shutil.which("huggingface-cli")
        if program is None:
            raise Usage("N712", "neither hf nor huggingface-cli is on PATH", hint="pip install huggingface_hub, or --via plain")
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


SOURCES: dict[str, Callable[[Client], Source]] = {"plain": Plain, "huggingface_hub": Library, "hf": Program}
