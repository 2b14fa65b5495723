"""Who moves the bytes of a pull: huggingface_hub where it is fit, uaii's own requests else, and nothing of either is believed."""
from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hub_cases import MODEL, SHARDS, TRANSPORTS, Bench, error
from hub_server import cut

from uaii.frontend.hub.download import Download
from uaii.frontend.hub.endpoint import Endpoint
from uaii.frontend.hub.http import Client, Failed
from uaii.frontend.hub.library import Transfer
from uaii.frontend.hub.listing import Entry
from uaii.frontend.hub.package import find

FIT = "2.4.0"
Get = Callable[..., None]


def package(get: Get, monkeypatch: pytest.MonkeyPatch, version: str = FIT) -> SimpleNamespace:
    """A huggingface_hub whose download function is `get`, in place of an installed one."""
    session = SimpleNamespace(event_hooks={"request": [], "response": []})
    made = SimpleNamespace(__version__=version, get_session=lambda: session)
    monkeypatch.setitem(sys.modules, "huggingface_hub", made)
    monkeypatch.setitem(sys.modules, "huggingface_hub.file_download", SimpleNamespace(http_get=get))
    return made


def unused(*words: Any, **options: Any) -> None:
    pytest.fail("a package that does not fit was used")


def by(bench: Bench, via: str) -> list[str]:
    """Pulls all of it that way, and says who has moved bytes."""
    result = bench.uaii("pull", "org/tiny", "--outdir", "model", "--via", via, "--format", "json")
    assert (result.exit_code, bench.same()) == (0, True), result.output
    used: list[str] = json.loads(result.stdout)["via"]
    return used


def agents(bench: Bench) -> set[str]:
    return {h["User-Agent"] if "User-Agent" in h else h["user-agent"] for _, path, h in bench.hub.log if "/resolve/" in path}


def test_auto_is_the_package_where_it_is_fit(bench: Bench) -> None:
    assert by(bench, "auto") == TRANSPORTS[-1:]
    there = find()
    assert agents(bench) == {f"uaii; hf_hub/{there.__version__}" if there else "uaii"}


@pytest.mark.parametrize("via", ["https", "plain"])
def test_https_is_uaii_alone(bench: Bench, via: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package(unused, monkeypatch)
    assert by(bench, via) == ["https"]
    assert agents(bench) == {"uaii"}


@pytest.mark.parametrize("version", [None, "0.36.2", "1.30.9", "3.0.0", "4", "unknown"])
def test_a_package_that_is_absent_or_not_tested_is_left_alone(bench: Bench, version: str | None,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    package(unused, monkeypatch, version or FIT)
    if version is None:
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert by(bench, "auto") == ["https"]
    result = bench.uaii("pull", "org/tiny", "--outdir", "other", "--via", "huggingface_hub", "--format", "json")
    assert (error(result)["code"], result.exit_code) == ("N712", 2)
    assert 'pip install "huggingface_hub>=1.31,<3"' in error(result)["hint"]


@pytest.mark.parametrize("version", ["1.31.0", "1.99", "2.4.0", "2.5.0rc1"])
def test_versions_that_are_used(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = package(unused, monkeypatch, version)
    assert find() is made


def test_a_package_that_cannot_be_imported(tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "huggingface_hub.py").write_text("raise RuntimeError('half an installation')")
    monkeypatch.delitem(sys.modules, "huggingface_hub", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert by(bench, "auto") == ["https"]


@pytest.mark.parametrize("via", ["auto", "huggingface_hub"])
def test_a_package_that_fails_is_asked_once_and_its_words_are_not_repeated(bench: Bench, via: str,
                                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def get(url: str, *words: Any, **options: Any) -> None:
        asked.append(url)
        raise ValueError("https://storage/x?signature=SECRET")

    package(get, monkeypatch)
    result = bench.uaii("pull", "org/tiny", "--outdir", "model", "--via", via)
    assert (result.exit_code, bench.same(), len(asked), bench.waits) == (0, True, 1, [0.5])
    assert "note: config.json: huggingface_hub gave up (ValueError); from there on by uaii's own requests\n" in result.stderr
    assert "SECRET" not in result.output


def whole(h: Transfer, text: bytes) -> None:
    """What a package does that is served well."""
    url = h.download.url
    h.asks(SimpleNamespace(url=url, headers={}))
    h.answers(SimpleNamespace(request=SimpleNamespace(url=url), headers={}, status_code=200, iter_bytes=None))
    h.write(text)


@pytest.mark.parametrize("harm", [lambda t: t[:-1], lambda t: t[:-1] + bytes([t[-1] ^ 1]), lambda t: t + b"x", lambda t: b"",
                                  lambda t: None])
def test_what_a_package_brings_is_verified(bench: Bench, harm: Callable[[bytes], bytes | None],
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    def get(url: str, file: Transfer, **options: Any) -> None:
        name = url.rsplit("/", 1)[-1]
        text = bench.hub.files[name]
        brought = harm(text) if name == SHARDS[1] else text
        if brought is not None:
            whole(file, brought)

    package(get, monkeypatch)
    assert by(bench, "auto") == ["huggingface_hub", "https"]
    assert (bench.hub.asked(), bench.waits) == ([SHARDS[1]], [0.5])


def test_what_comes_before_too_much_is_not_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of config.json only the size is known."""
    def get(url: str, file: Transfer, **options: Any) -> None:
        whole(file, b"x" * len(bench.hub.files["config.json"]))
        file.write(b"x")

    bench.hub.linked = False
    package(get, monkeypatch)
    assert bench.pull("--via", "auto").exit_code == 0
    assert bench.same()


def test_the_package_is_told_the_token_and_sends_it_nowhere_else(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    seen = []

    def get(url: str, file: Transfer, headers: dict[str, str], **options: Any) -> None:
        seen.append(headers["Authorization"])
        away = SimpleNamespace(url=f"{bench.hub.elsewhere}/x", headers={"Authorization": "Bearer hf_secret"})
        file.asks(away)
        seen.append(away.headers.get("Authorization"))
        raise ValueError("hf_secret")

    package(get, monkeypatch)
    result = bench.pull("--via", "auto")
    assert (result.exit_code, seen) == (0, ["Bearer hf_secret", None])
    assert "hf_secret" not in result.output


def test_a_step_down_from_https_is_refused(tmp_path: Path) -> None:
    url = "https://hub/org/tiny/resolve/main/x"
    h = Transfer(Download(Client(Endpoint("https://hub")), url, Entry("x"), tmp_path / "x", lambda at, size: None))
    with pytest.raises(Failed, match="from https to http"):
        h.answers(SimpleNamespace(request=SimpleNamespace(url=url), headers={"Location": "http://hub/x"}, status_code=302))


def test_what_arrived_before_a_drop_is_gone_on_from(bench: Bench) -> None:
    bench.hub.faults[SHARDS[1]] = [cut(0.6)]
    assert by(bench, "auto") == (["https"] if TRANSPORTS == ["https"] else ["huggingface_hub", "https"])
    assert bench.hub.headers(SHARDS[1])[1]["Range"] == f"bytes={int(len(bench.hub.files[SHARDS[1]]) * 0.6)}-"
    assert bench.hub.asked().count(SHARDS[1]) == 2


def test_the_package_is_left_as_it_was_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    log = logging.getLogger("huggingface_hub")
    monkeypatch.setattr(log, "level", logging.WARNING)
    levels = []

    def get(url: str, file: Transfer, **options: Any) -> None:
        levels.append(log.level)
        whole(file, bench.hub.files[file.download.entry.name])

    made = package(get, monkeypatch)
    hooks = made.get_session().event_hooks
    assert bench.pull("--via", "auto").exit_code == 0
    assert made.get_session().event_hooks is hooks and hooks == {"request": [], "response": []}
    assert set(levels) == {logging.CRITICAL + 1} and len(levels) == len(MODEL) and log.level == logging.WARNING
