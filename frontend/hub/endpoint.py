"""Which hub is asked and who asks: the environment's endpoint, token and offline switch, as huggingface_hub reads them."""
from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from uaii.ir.diag import Usage

DEFAULT = "https://huggingface.co"
YES = ("1", "on", "yes", "true")


@dataclass(frozen=True)
class Endpoint:
    """A hub's address without a final slash, and the token for it alone, which no text of this object shows."""

    url: str = DEFAULT
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
            raise Usage("N702", "HF_ENDPOINT is not the address of a hub", why="it must read https://HOST, without a login",
                        hint=f"unset it for {DEFAULT}")

    def owns(self, url: str) -> bool:
        """Whether an address is of this very host, port and scheme: the only ones that are given the token."""
        return urlsplit(url)[:2] == urlsplit(self.url)[:2]

    def listing(self, repo: str, revision: str) -> str:
        """Where the files of a revision are listed."""
        return f"{self.url}/api/models/{quote(repo)}/revision/{quote(revision, safe='')}"

    def file(self, repo: str, revision: str, name: str) -> str:
        """Where a file of a revision is."""
        return f"{self.url}/{quote(repo)}/resolve/{quote(revision, safe='')}/{quote(name)}"


def from_environment() -> Endpoint:
    """HF_ENDPOINT, with the token of HF_TOKEN, HUGGING_FACE_HUB_TOKEN or the file that `hf auth login` writes.

    Raises Usage N702 for an address or a token that cannot be meant; a token is never shown.
    """
    token = next((t for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if (t := os.environ.get(name, "").strip())), "")
    token = token or _stored()
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise Usage("N702", "the access token holds characters that no token has", hint="set HF_TOKEN to the token alone")
    return Endpoint((os.environ.get("HF_ENDPOINT") or DEFAULT).rstrip("/"), token or None)


def _stored() -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Path(os.environ.get("HF_HOME") or cache / "huggingface")
    try:
        return Path(os.environ.get("HF_TOKEN_PATH") or home / "token").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def offline() -> bool:
    """Whether HF_HUB_OFFLINE says that the network must not be used."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in YES
