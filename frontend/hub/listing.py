"""What a repository holds: its name, one commit, and the files of it with size and sha256 where the hub states them."""
from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from uaii.frontend.hub.http import Client, Failed, Refused
from uaii.frontend.jsonfile import shown
from uaii.frontend.open import refuse_api_only
from uaii.ir.diag import Diagnostic, Malformed, Usage

REPO = re.compile(r"(?:[A-Za-z0-9][\w.-]{0,95}/)?[A-Za-z0-9][\w.-]{0,95}")
SHA256 = re.compile(r"[0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Entry:
    """A file of a repository: size in bytes and sha256 where stated; `blob` is Git's id of its text or pointer."""

    name: str
    size: int | None = None
    sha256: str | None = None
    blob: str | None = None


@dataclass(frozen=True)
class Listing:
    """The files of one commit (None when the hub does not say which)."""

    repo: str
    revision: str
    commit: str | None
    files: tuple[Entry, ...]

    def entry(self, name: str) -> Entry:
        """The file, without size and hash when it is not listed."""
        return next((e for e in self.files if e.name == name), Entry(name))


def repository(text: str, endpoint: str) -> str:
    """The owner/name that a user meant, given so or as the address of its page.

    Raises Unsupported U004 (a model without public weights), Usage N701.
    """
    name = text.removeprefix(endpoint).removeprefix("https://huggingface.co").removeprefix("hf.co").strip("/")
    refuse_api_only(name)
    if not REPO.fullmatch(name) or ".." in name or name.endswith((".git", ".gguf", ".safetensors")):
        raise Usage("N701", f"{shown(text)} is not the name of a repository", hint="it reads owner/name, as on the model's page")
    return name


def fetch_listing(client: Client, repo: str, revision: str) -> Listing:
    """Asks the hub. Raises Usage N703 (not there), N704 (not allowed), Malformed N706 (no listing), N709 (no answer)."""
    url = client.endpoint.listing(repo, revision)
    try:
        try:
            raw = client.json(url + "?blobs=true")
        except Refused as no:
            if no.status not in (400, 404) or no.code:
                raise
            raw = client.json(url)  # a mirror that does not know the question
    except Refused as no:
        raise access(client, repo, no, revision) from None
    except Failed as err:
        raise Malformed("N709", f"pull incomplete: no list of the files of {repo}", why=str(err),
                        hint="check the network and HF_ENDPOINT; HF_HUB_OFFLINE=1 uses what is here") from None
    return parse(raw, repo, revision)


def parse(raw: Any, repo: str, revision: str) -> Listing:
    """A listing from the hub's JSON; raises Malformed N706."""
    siblings = raw.get("siblings") if isinstance(raw, dict) else None
    if not isinstance(siblings, list) or not all(isinstance(s, dict) and isinstance(s.get("rfilename"), str) for s in siblings):
        raise Malformed("N706", f"the hub's answer for {repo} is not a list of files", hint="check HF_ENDPOINT")
    sha = raw.get("sha")
    commit = sha if isinstance(sha, str) and COMMIT.fullmatch(sha) else None
    return Listing(repo, revision, commit, tuple(_entry(s) for s in siblings))


def _entry(raw: dict[str, Any]) -> Entry:
    lfs = raw["lfs"] if isinstance(raw.get("lfs"), dict) else {}
    size = next((n for n in (lfs.get("size"), raw.get("size")) if type(n) is int and n >= 0), None)
    sha = next((s for s in (lfs.get("sha256"), lfs.get("oid")) if isinstance(s, str)), "").removeprefix("sha256:")
    blob = raw.get("blobId")
    return Entry(raw["rfilename"], size, sha if SHA256.fullmatch(sha) else None, blob if isinstance(blob, str) else None)


def access(client: Client, repo: str, no: Refused, revision: str = "") -> Diagnostic:
    """The error for a refusal of the hub: gated, private, misspelt or a token that it does not take."""
    page = f"{client.endpoint.url}/{repo}"
    if no.code == "RevisionNotFound":
        return Usage("N703", f"{repo} has no revision {shown(revision)}", hint=f"see {page}/tree/main for its branches")
    if no.code == "GatedRepo" or no.status == 403:
        return Usage("N704", f"{repo} is gated: this account may not read it", why=f"the hub answered {no.status}",
                     hint=f"accept the conditions at {page}, then set HF_TOKEN to a token of that account")
    if no.status == 401 and no.code != "RepoNotFound":
        does = "does not take the token" if client.endpoint.token else "asks for a login"
        return Usage("N704", f"the hub {does} for {repo}", why=f"the hub answered {no.status}",
                     hint=f"it may be gated, private or misspelt; if it is at {page}: set HF_TOKEN to a token that may read it")
    if no.status in (401, 404):
        what = f"no model {repo} for this token" if client.endpoint.token else f"no public model {repo}"
        at = f" with a revision {shown(revision)}" if revision not in ("", "main") else ""
        return Usage("N703", f"{what}{at} at {client.endpoint.url}", why=f"the hub answered {no.status}",
                     hint="check the spelling; if it is private or gated: set HF_TOKEN")
    return Malformed("N709", f"pull incomplete: the hub refuses {repo}", why=f"it answered HTTP status {no.status}",
                     hint="check HF_ENDPOINT")


def inside(name: str, source: str) -> str:
    """The name, when it stays inside the folder that is being written; raises Malformed N706."""
    parts = PurePosixPath(name).parts
    good = (0 < len(name) < 512 and name.isprintable() and "\\" not in name and ":" not in name and not name.startswith("/")
            and "/".join(parts) == name and not any(p.startswith("..") or p.endswith(".uaii-part") for p in parts))
    if not good or name.startswith((".uaii-pull", ".cache/")):
        raise Malformed("N706", f"{source} names {ascii(name[:80])}, which is not a plain name inside the folder",
                        why="a download may not write anywhere else", hint="the repository is not to be trusted")
    return name
