"""A hub on the loopback for the tests of pull: a repository in memory, a request log, and answers that go wrong on order."""
from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34
LARGE = (".safetensors", ".gguf")


@dataclass
class Hub:
    """`files` of `repo`; `faults` are used up one for each request of a file (or of "listing"), then it is served well.

    `sizes`: the listing states size and sha256; `linked`: the answers do; `ranges`: Range is honoured; `token`: required
    of every request but those to `elsewhere`, a second port that stands for the storage host.
    """

    files: dict[str, bytes]
    repo: str = "org/tiny"
    commit: str | None = COMMIT
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    sizes: bool = True
    linked: bool = True
    ranges: bool = True
    token: str | None = None
    url: str = ""
    elsewhere: str = ""
    log: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)  # method, path at its host, headers
    stalled: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def asked(self) -> list[str]:
        """The files that were asked for, in order, wherever the bytes came from."""
        return [p.split("/", 1)[1] for m, path, _ in self.log if m == "GET" and (p := path.partition("/resolve/")[2])]

    def headers(self, name: str) -> list[dict[str, str]]:
        """The headers of each request for a file."""
        return [h for _, path, h in self.log if path.endswith("/" + name)]

    def listing(self) -> dict[str, Any]:
        siblings = []
        for name, text in self.files.items():
            entry: dict[str, Any] = {"rfilename": name}
            if self.sizes:
                entry |= {"size": len(text), "blobId": hashlib.sha1(text).hexdigest()}
                entry |= {"lfs": {"size": len(text), "sha256": sha256(text)}} if name.endswith(LARGE) else {}
            siblings.append(entry)
        return {"id": self.repo, "siblings": siblings} | ({"sha": self.commit} if self.commit else {})


Fault = Callable[["Handler", bytes], None]


class Handler(BaseHTTPRequestHandler):
    """Serves one request of a Hub."""

    hub: Hub
    away = False

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.hub.log.append((self.command, ("elsewhere" if self.away else "") + unquote(url.path), dict(self.headers.items())))
        if not self.away and self.hub.token and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            self.answer(401, b"{}", {"X-Error-Code": "GatedRepo"})
        elif url.path.startswith(f"/api/models/{self.hub.repo}/revision/"):
            self.give("listing", json.dumps(self.hub.listing()).encode())
        elif url.path.startswith(f"/{self.hub.repo}/resolve/"):
            name = unquote(url.path).split("/resolve/", 1)[1].split("/", 1)[1]
            if name in self.hub.files:
                self.give(name, self.hub.files[name])
            else:
                self.answer(404, b"Entry not found", {"X-Error-Code": "EntryNotFound"})
        elif self.away and url.path.endswith("/expired"):
            self.answer(403, b"Request has expired")
        elif self.away:
            self.send(self.hub.files[url.path.rsplit("/", 1)[-1]])
        else:
            self.answer(404, b"Not found", {"X-Error-Code": "RepoNotFound"})

    def give(self, name: str, text: bytes) -> None:
        if self.hub.faults.get(name):
            self.hub.faults[name].pop(0)(self, text)
        else:
            self.send(text, {} if name == "listing" else self.stated(text))

    def stated(self, text: bytes) -> dict[str, str]:
        """What the hub says of a file."""
        said = {"ETag": f'"{hashlib.sha1(text).hexdigest()}"', "X-Repo-Commit": self.hub.commit or ""}
        linked = {"X-Linked-Size": str(len(text)), "X-Linked-ETag": f'"{sha256(text)}"'}
        return said | (linked if self.hub.linked else {})

    def send(self, text: bytes, headers: dict[str, str] | None = None) -> None:
        """The file, or the range of it that was asked for."""
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").split("-")[0]) if asked and self.hub.ranges else 0
        said = {"Content-Range": f"bytes {start}-{len(text) - 1}/{len(text)}"} if start else {}
        self.answer(206 if start else 200, text[start:], (headers or {}) | said)

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None, length: int | None = None) -> None:
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(body) if length is None else length)} | (headers or {})).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing: Hub.log keeps it."""


def cut(share: float) -> Fault:
    """Drops the connection after a share of what was asked for; the Content-Length is that of the whole."""
    def fault(h: Handler, text: bytes) -> None:
        asked = h.headers.get("Range")
        start = int(asked.removeprefix("bytes=").split("-")[0]) if asked and h.hub.ranges else 0
        rest = text[start:]
        said = {"Content-Range": f"bytes {start}-{len(text) - 1}/{len(text)}"} if start else {}
        h.answer(206 if start else 200, rest[:int(len(rest) * share)], h.stated(text) | said, len(rest))
    return fault


def stall(share: float) -> Fault:
    """Sends a share and then nothing more, until the test lets go."""
    def fault(h: Handler, text: bytes) -> None:
        h.answer(200, text[:int(len(text) * share)], h.stated(text), len(text))
        h.wfile.flush()
        h.hub.stalled.set()
        h.hub.released.wait(30)
    return fault


def status(code: int, **headers: str) -> Fault:
    """An error; retry_after="3" is a Retry-After header."""
    return lambda h, text: h.answer(code, b"{}", {k.replace("_", "-"): v for k, v in headers.items()})


def page(h: Handler, text: bytes) -> None:
    """A web page with status 200."""
    h.answer(200, b"<!doctype html><title>Sign in</title>", {"Content-Type": "text/html; charset=utf-8"})


def instead(body: bytes, **headers: str) -> Fault:
    """Another body with status 200, nothing stated but its own length."""
    return lambda h, text: h.answer(200, body, {k.replace("_", "-"): v for k, v in headers.items()})


def length(n: int) -> Fault:
    """The right body under a Content-Length of `n`."""
    return lambda h, text: h.answer(200, text, h.stated(text), n)


def elsewhere(h: Handler, text: bytes) -> None:
    """A redirect to the storage host, with what the hub says of the file on this hop."""
    h.answer(302, b"", h.stated(text) | {"Location": h.hub.elsewhere + h.path + "?signature=SECRET"})


def moved(to: str) -> Fault:
    """A redirect to an address."""
    return lambda h, text: h.answer(302, b"", {"Location": to})


def wrong_range(h: Handler, text: bytes) -> None:
    """A 206 for bytes that were not asked for."""
    h.answer(206, text[1:], h.stated(text) | {"Content-Range": f"bytes 1-{len(text) - 1}/{len(text)}"})


def sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub on a free port of the loopback, and its storage host on another."""
    servers = []
    for away in (False, True):
        handler = type("Bound", (Handler,), {"hub": hub, "away": away})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
    hub.url, hub.elsewhere = (f"http://127.0.0.1:{s.server_address[1]}" for s in servers)
    try:
        yield hub
    finally:
        hub.released.set()
        for server in servers:
            server.shutdown()
            server.server_close()
