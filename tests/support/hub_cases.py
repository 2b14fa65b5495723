"""A tiny model as a hub repository, and the `uaii` command pointed at it: for the tests of pull and generate."""
from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tiny_llama_for_cli as tiny
from click.testing import CliRunner, Result
from hub_server import Hub, serving

from uaii.cli.main import main
from uaii.frontend.hub.http import Client
from uaii.frontend.hub.package import find

SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
INDEX = "model.safetensors.index.json"
TEXTS = ["config.json", "generation_config.json", "tokenizer.json"]
TRANSPORTS = ["https", *(["huggingface_hub"] if find() else [])]
MODEL = [*TEXTS, INDEX, *SHARDS]
ENV = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "http_proxy", "https_proxy", "all_proxy",
       "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@dataclass
class Bench:
    """A served hub, a folder to work in, and the pauses that were asked for instead of slept."""

    hub: Hub
    here: Path
    via: str = "https"
    waits: list[float] = field(default_factory=list)

    def uaii(self, *words: str) -> Result:
        """Runs the command in the folder."""
        return CliRunner().invoke(main, list(words))

    def pull(self, *options: str, repo: str = "org/tiny") -> Result:
        return self.uaii("pull", repo, "--outdir", "model", "--via", self.via, *options)

    def names(self, folder: str = "model") -> list[str]:
        """The plain files of a folder, without the record."""
        at = self.here / folder
        return sorted(p.relative_to(at).as_posix() for p in at.rglob("*") if p.is_file() and not p.name.startswith("."))

    def same(self, names: list[str] = MODEL, folder: str = "model") -> bool:
        """Whether the folder holds these files, as published."""
        found = {n: (self.here / folder / n).read_bytes() for n in self.names(folder)}
        return found == {n: self.hub.files[n] for n in names}

    def hidden(self) -> list[str]:
        """What a pull has left behind beside the folder."""
        return sorted(p.name for p in self.here.iterdir() if p.name.startswith("."))


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A llama in two shards with a tokenizer, and beside it what nobody wants."""
    folder = tiny.folder(tmp_path_factory.mktemp("hub") / "tiny", tiny.CASE.but(shards=2))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    files = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert sorted(files) == sorted(MODEL)
    return files | {"README.md": b"# tiny\n", "pytorch_model.bin": b"\x80\x02", "onnx/model.onnx": b"x", "x-Q4_0.gguf": b"GGUF",
                    "original/consolidated.00.pth": b"PK", "consolidated.safetensors": b"x", ".gitattributes": b"x"}


@pytest.fixture
def via() -> str:
    """Who moves the bytes; a module that marks its tests with EACH_WAY has them run once for each of TRANSPORTS."""
    return "https"


EACH_WAY = pytest.mark.parametrize("via", TRANSPORTS)


@pytest.fixture
def bench(repository: dict[str, bytes], via: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """The repository served; no pause is slept, nothing of the user's environment is seen."""
    here = tmp_path / "here"
    here.mkdir()
    with serving(Hub(dict(repository))) as hub:
        made = Bench(hub, here, via)
        for name in ENV:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("UAII_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(Client, "pause", lambda self, seconds: made.waits.append(seconds))
        monkeypatch.setattr("time.sleep", lambda seconds: None)  # huggingface_hub waits a second before it tries again
        monkeypatch.chdir(here)
        yield made


def error(result: Result) -> dict[str, Any]:
    """The diagnostic of a run with --format json."""
    said: dict[str, Any] = json.loads(result.stdout)["error"]
    return said
