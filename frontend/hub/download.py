"""One file from the hub into a folder: resumed where the server allows it, and verified before it has its name."""
from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from uaii.frontend.blob import refuse_placeholder
from uaii.frontend.hub.http import Client, Failed, Headers, Reply, Transient, number
from uaii.frontend.hub.listing import SHA256, Entry
from uaii.frontend.hub.record import Done
from uaii.ir.diag import Diagnostic, Usage
from uaii.ir.loc import File

PIECE = 1 << 20  # bytes read at a time
RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
Tick = Callable[[int, int | None], None]  # bytes of this file so far, and its size when it is known


@dataclass
class Download:
    """A file on its way into `path`; what has arrived so far is beside it in `part`, its etag in a second one.

    `first` makes the first try of a file of which nothing is there, raising what the others raise. `asked`: uaii itself has
    asked for the file.
    """

    client: Client
    url: str
    entry: Entry
    path: Path
    tick: Tick
    first: Callable[[Download], None] | None = None
    asked: bool = False
    etag: str | None = None

    @property
    def part(self) -> Path:
        return self.path.with_name(self.path.name + ".uaii-part")

    @property
    def mark(self) -> Path:
        return self.path.with_name(self.path.name + ".etag.uaii-part")

    def run(self) -> Done:
        """Fetches and verifies the file. Raises Refused, Failed; Usage N711 when it cannot be written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.etag = self.mark.read_text("utf-8") if self.mark.exists() else None
        except OSError as err:
            raise unwritable(self.path, err) from None
        return self.client.patiently(self._attempt, self.have)

    def have(self) -> int:
        """Bytes that have arrived."""
        return self.part.stat().st_size if self.part.exists() else 0

    def _attempt(self) -> Done:
        have, first, self.first = self.have(), self.first, None
        if first:
            first(self)
        elif have != self.entry.size or not have:
            self._transfer(have)
        done = settle(self.part, self.path, self.entry)
        self.mark.unlink(missing_ok=True)
        return done

    def _transfer(self, have: int) -> None:
        self.asked = True
        with self.client.get(self.url, {"Range": f"bytes={have}-"} if have else None) as reply:
            start = self._start(reply, have)
            size = self.learn(reply.linked, start + reply.length if reply.length is not None else None)
            self.refuse_page(reply.is_page)
            if start == 0:
                self.begin(reply.linked)
            self._receive(reply, start, size)

    def _start(self, reply: Reply, have: int) -> int:
        """The offset that the body begins at: 0, or `have` when the server goes on with the same file."""
        if reply.status == 200:
            return 0
        found = RANGE.fullmatch(reply.headers.get("Content-Range") or "")
        total = self.entry.size if self.entry.size is not None else found and number(found[3])
        whole = found and int(found[1]) == have and (total is None or int(found[2]) + 1 == total)
        if reply.status != 206 or not have or not whole or (self.etag or "") != (reply.linked.get("ETag") or ""):
            self.part.unlink(missing_ok=True)
            raise Transient("the server does not go on where the download had stopped")
        return have

    def refuse_page(self, is_page: bool) -> None:
        """Raises Failed for an answer that calls itself a web page."""
        if is_page and not self.path.name.endswith((".html", ".md")):
            raise Failed("the server sent a web page (HTML) instead of the file")

    def begin(self, linked: Headers) -> None:
        """Notes which content the part will hold, before the first byte of it is written."""
        self.etag = linked.get("ETag")
        try:
            self.mark.write_bytes((self.etag or "").encode())
        except OSError as err:
            raise unwritable(self.path, err) from None

    def learn(self, linked: Headers, sent: int | None) -> int | None:
        """The size of the whole file in bytes, and its sha256, from the hub's own headers; `sent` is what the server offers.

        Raises Transient when it offers another size.
        """
        size = number(linked.get("X-Linked-Size"))
        tag = (linked.get("X-Linked-ETag") or linked.get("ETag") or "").removeprefix("W/").strip('"')
        stated = self.entry.sha256 or (tag if SHA256.fullmatch(tag) else None)
        known = self.entry.size if self.entry.size is not None else size
        self.entry = Entry(self.entry.name, known, stated, self.entry.blob)
        if known is not None and sent is not None and known != sent:
            raise Transient(f"the server offers {sent} bytes and the file has {known}")
        return known if known is not None else sent

    def _receive(self, reply: Reply, start: int, size: int | None) -> None:
        at = start
        with self._open(start) as file:
            while piece := reply.body.read1(PIECE):
                at += len(piece)
                if size is not None and at > size:
                    break
                try:
                    file.write(piece)
                except OSError as err:
                    raise unwritable(self.path, err) from None
                self.tick(at, size)
        if size is not None and at > size:
            self.part.unlink()
            raise Transient(f"the server sends more than the {size} bytes of the file")
        if size is not None and at < size:
            raise Transient(f"the transfer was cut off at {at} of {size} bytes")

    def _open(self, start: int) -> BinaryIO:
        try:
            return self.part.open("ab" if start else "wb")
        except OSError as err:
            raise unwritable(self.path, err) from None


def settle(part: Path, path: Path, entry: Entry) -> Done:
    """Gives a file its name once size and sha256 are those of `entry`, as far as these are known.

    Raises Transient (then the file is gone) and Failed for a Git LFS pointer or a web page in place of the file.
    """
    size = part.stat().st_size
    if entry.size is not None and size != entry.size:
        part.unlink()
        raise Transient(f"{size} bytes arrived and the file has {entry.size}")
    sha = hashlib.sha256()
    head = b""
    with part.open("rb") as file:
        while piece := file.read(PIECE):
            head = head or piece[:512]
            sha.update(piece)
    if entry.sha256 is not None and sha.hexdigest() != entry.sha256:
        part.unlink()
        raise Transient("the sha256 of what arrived is not the file's")
    try:
        if entry.sha256 is None and size and not path.name.endswith((".html", ".md")):
            refuse_placeholder("N709", path, head, size)
    except Diagnostic as err:
        part.unlink()
        raise Failed(err.says) from None
    os.replace(part, path)
    return Done(size, sha.hexdigest(), path.stat().st_mtime_ns, entry.sha256 is not None)


def unwritable(path: Path, err: OSError) -> Usage:
    """The error for a place that cannot be written, or is full."""
    return Usage("N711", f"cannot write {path.name}: {err.strerror}", File(str(path.parent)),
                 hint="make room, or choose another place with --outdir; what has arrived is kept")
