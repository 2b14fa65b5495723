"""huggingface_hub as the mover of a file's bytes.

It has one request a file, and the answer is judged as those to uaii's own requests are. Left alone it sleeps as long as a server
asks it to, takes a web page for a file, and its hf_hub_download keeps nothing of a file that was cut off. Only its plain HTTP is
used, since Xet fetches from hosts of its own, whatever HF_ENDPOINT says.
"""
from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from uaii.frontend.hub.download import Download
from uaii.frontend.hub.http import REDIRECTS, Headers, Transient, number, redirected, refusal


def fill(package: Any, download: Download) -> None:
    """Brings the file into the empty part of a download. Raises Refused, Failed, Transient, and whatever the package raises."""
    files, token = importlib.import_module("huggingface_hub.file_download"), download.client.endpoint.token
    # The package's own headers would tell what else is installed, after a request to ask how to tell it.
    headers = {"User-Agent": f"uaii; hf_hub/{package.__version__}", "Accept-Encoding": "identity"}
    with _watched(package, download) as transfer:
        files.http_get(download.url, transfer, headers=headers | ({"Authorization": f"Bearer {token}"} if token else {}),
                       expected_size=download.entry.size, displayed_filename=download.entry.name, tqdm_class=Silent)
    if transfer.file is None:
        raise Transient("nothing arrived")
    if download.entry.size is None:
        download.entry = replace(download.entry, size=transfer.at)


@dataclass
class Transfer:
    """Sees each request of the package before it leaves, each answer before its body is read, and is the file that it writes."""

    download: Download
    asked: bool = False
    linked: Headers | None = None
    file: BinaryIO | None = None
    at: int = 0

    def asks(self, request: Any) -> None:
        """Takes the token from a request to another host. Raises Transient for a second try."""
        url = str(request.url)
        if url == self.download.url and self.asked:
            raise Transient("the connection was lost")
        self.asked = True
        if not self.download.client.endpoint.owns(url):
            request.headers.pop("Authorization", None)

    def answers(self, response: Any) -> None:
        """Learns what the hub says of the file. Raises Refused, Failed and Transient for anything but the whole of it."""
        url = str(response.request.url)
        ours = self.download.client.endpoint.owns(url)
        if self.linked is None or (ours and "X-Linked-Size" in response.headers):
            self.linked = response.headers
        if response.status_code in REDIRECTS:
            redirected(url, response.headers.get("Location"))
            return
        if response.status_code != 200:
            raise refusal(response.status_code, response.headers, ours)
        self.download.learn(self.linked, number(response.headers.get("Content-Length")))
        self.download.refuse_page(response.headers.get("Content-Type", "").lower().startswith("text/html"))
        self.download.begin(self.linked)
        self.file = self.download.part.open("wb")
        pieces = response.iter_bytes  # the package asks for 10 MiB at a time, and loses them when the connection does
        response.iter_bytes = lambda chunk_size=None: pieces()

    def write(self, piece: bytes) -> int:
        """Raises Transient when more comes than the file has."""
        assert self.file is not None  # no body without an answer
        self.at += len(piece)
        size = self.download.entry.size
        if size is not None and self.at > size:
            self.download.part.unlink()
            raise Transient(f"the server sends more than the {size} bytes of the file")
        self.download.tick(self.at, size)
        return self.file.write(piece)

    def tell(self) -> int:
        """Bytes so far."""
        return self.at


@contextmanager
def _watched(package: Any, download: Download) -> Iterator[Transfer]:
    """The package's own session under watch, and its log silent: it would print addresses with signatures."""
    transfer, session, log = Transfer(download), package.get_session(), logging.getLogger("huggingface_hub")
    hooks, level = session.event_hooks, log.level
    session.event_hooks = {"request": [*hooks["request"], transfer.asks], "response": [*hooks["response"], transfer.answers]}
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield transfer
    finally:
        session.event_hooks = hooks
        log.setLevel(level)
        if transfer.file is not None:
            transfer.file.close()


class Silent:
    """The progress bar that the package asks for; Transfer shows the progress."""

    def __init__(self, **_: Any) -> None:
        pass

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: int) -> None:
        """Bytes more."""
