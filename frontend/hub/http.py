"""HTTP as a hub needs it: redirects without the token, what is worth another try, and how long to wait before it."""
from __future__ import annotations

import email.utils
import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from urllib.error import URLError
from urllib.parse import urljoin, urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from uaii.frontend.hub.endpoint import Endpoint

T = TypeVar("T")
HOPS = 10            # redirects in a row
LONGEST_WAIT = 300.  # seconds that a Retry-After may ask for
LISTING = 1 << 28    # bytes of a JSON answer
REDIRECTS = (301, 302, 303, 307, 308)
DROPPED = (OSError, http.client.HTTPException)  # URLError, timeouts, TLS and connection errors are OSErrors


class Headers(Protocol):
    """The headers of an answer; names in any case."""

    def get(self, name: str, /) -> Any: ...


class Refused(Exception):
    """The hub's answer is no, and asking again will not change it: `status`, and the hub's own `code` for it.

    `name` is the file that was asked for, empty for a listing.
    """

    def __init__(self, status: int, code: str = "") -> None:
        super().__init__(f"HTTP status {status}")
        self.status, self.code, self.name = status, code, ""


class Failed(Exception):
    """It did not work and another try is not worth it; the text says why and holds no address with a signature.

    `name` is the file that was asked for, empty for a listing.
    """

    def __init__(self, says: str, name: str = "") -> None:
        super().__init__(says)
        self.name = name


class Transient(Exception):
    """It did not work this time. `wait` is the pause in seconds that the server asks for, None when it does not."""

    def __init__(self, says: str, wait: float | None = None) -> None:
        super().__init__(says)
        self.wait = wait


@dataclass
class Reply:
    """An answer with its body unread. `linked` holds the headers of the hub's own hop, which say what a file is."""

    status: int
    headers: http.client.HTTPMessage
    linked: http.client.HTTPMessage
    body: http.client.HTTPResponse

    @property
    def length(self) -> int | None:
        """Content-Length in bytes."""
        return number(self.headers.get("Content-Length"))

    @property
    def is_page(self) -> bool:
        """Whether the server calls it a web page."""
        return self.headers.get_content_type() == "text/html"


def number(text: str | None) -> int | None:
    """A header that must be a whole number; None when it is none."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None


@dataclass
class Client:
    """Requests to one hub. `tries` counts failures in a row, `timeout` bounds a silence in seconds."""

    endpoint: Endpoint
    tries: int = 6
    timeout: float = 30.
    _opener: OpenerDirector = field(default_factory=OpenerDirector, repr=False)

    def __post_init__(self) -> None:
        for handler in (ProxyHandler, HTTPHandler, HTTPSHandler):  # no file: and ftp:, no redirects of urllib's own
            self._opener.add_handler(handler())

    def pause(self, seconds: float) -> None:
        """Waits before the next try."""
        time.sleep(seconds)

    @contextmanager
    def get(self, url: str, headers: dict[str, str] | None = None) -> Iterator[Reply]:
        """The answer to a GET with status 200, 206 or 416.

        Raises Refused, Failed or Transient; also for what goes wrong while the body is read.
        """
        response: http.client.HTTPResponse | None = None
        try:
            response, linked = self._follow(url, headers or {})
            yield Reply(response.status, response.headers, linked, response)
        except ssl.SSLCertVerificationError as err:
            raise Failed(f"the certificate of the server is not trusted: {err.verify_message}") from None
        except URLError as err:
            if isinstance(err.reason, ssl.SSLCertVerificationError):
                raise Failed(f"the certificate of the server is not trusted: {err.reason.verify_message}") from None
            reason = err.reason.strerror if isinstance(err.reason, OSError) else str(err.reason)
            raise Transient(f"{urlsplit(url).netloc} cannot be reached: {reason}") from None
        except DROPPED as err:
            raise Transient(f"the connection was lost ({type(err).__name__})") from None
        finally:
            if response is not None:
                response.close()

    def _follow(self, url: str, headers: dict[str, str]) -> tuple[http.client.HTTPResponse, http.client.HTTPMessage]:
        linked: http.client.HTTPMessage | None = None
        for _ in range(HOPS):
            request = Request(url, headers={"User-Agent": "uaii", **headers})
            ours = self.endpoint.owns(url)
            if ours and self.endpoint.token:
                request.add_unredirected_header("Authorization", f"Bearer {self.endpoint.token}")
            response: http.client.HTTPResponse = self._opener.open(request, timeout=self.timeout)
            if linked is None or (ours and "X-Linked-Size" in response.headers):
                linked = response.headers
            if response.status not in REDIRECTS:
                self._judge(response, ours)
                return response, linked
            response.close()
            url = redirected(url, response.headers.get("Location"))
        raise Failed(f"more than {HOPS} redirects")

    def _judge(self, response: http.client.HTTPResponse, ours: bool) -> None:
        if response.status in (200, 206, 416):
            return
        response.close()
        raise refusal(response.status, response.headers, ours)

    def patiently(self, attempt: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
        """What `attempt` returns, tried again with growing pauses while it raises Transient.

        `progress` counts the bytes that are safe: the count of failures starts again after each MiB. Raises Failed.
        """
        failures, mark = 0, progress()
        while True:
            try:
                return attempt()
            except Transient as err:
                if progress() >= mark + (1 << 20):
                    failures, mark = 0, progress()
                failures += 1
                wait = err.wait if err.wait is not None else 0.5 * 2 ** (failures - 1)
                if wait > LONGEST_WAIT:
                    raise Failed(f"{err}; the server asks to wait {wait:.0f} s") from None
                if failures >= self.tries:
                    raise Failed(f"{err}; tried {failures} times") from None
            self.pause(wait)

    def json(self, url: str) -> Any:
        """The JSON that an address answers with. Raises Refused or Failed."""
        return self.patiently(lambda: self._json(url))

    def _json(self, url: str) -> Any:
        with self.get(url) as reply:
            text = reply.body.read(LISTING)
        if reply.length is not None and len(text) < reply.length:
            raise Transient(f"the answer was cut off at {len(text)} of {reply.length} bytes")
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            what = "a web page (HTML)" if reply.is_page or text.lstrip()[:1] == b"<" else "something that is not JSON"
            raise Failed(f"{self.endpoint.url} answered with {what}") from None


def redirected(url: str, location: str | None) -> str:
    """Where a redirect leads. Raises Failed for no address of the web, and for one without https after one with it."""
    target = urljoin(url, location or "")
    scheme = urlsplit(target).scheme
    if not location or scheme not in ("http", "https") or not urlsplit(target).hostname:
        raise Failed("a redirect that leads nowhere")
    if urlsplit(url).scheme == "https" and scheme == "http":
        raise Failed(f"a redirect from https to http, at {urlsplit(target).netloc}")
    return target


def refusal(status: int, headers: Headers, ours: bool) -> Refused | Transient:
    """What an answer that is not a file means; `ours`: it comes from the hub itself."""
    # A storage host answers 403 when the signature of its address has run out: the hub then makes a new one.
    if status in (408, 429) or status >= 500 or (not ours and status in (401, 403, 404)):
        return Transient(f"HTTP status {status}", wait_of(headers.get("Retry-After")))
    return Refused(status, headers.get("X-Error-Code") or "")


def wait_of(text: str | None) -> float | None:
    """Seconds that a Retry-After header asks for, given as a number or as a date; None for anything else."""
    if text is None:
        return None
    if (seconds := number(text.strip())) is not None:
        return float(seconds)
    try:
        return max(0., email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
