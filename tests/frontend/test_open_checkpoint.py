"""Which checkpoint a path means."""
from __future__ import annotations

import os
from pathlib import Path

import pytest
from raw_gguf import Raw, gguf_bytes
from raw_safetensors import folder

from uaii.frontend.checkpoint import Checkpoint
from uaii.frontend.gguf import Gguf
from uaii.frontend.hf import HfFolder
from uaii.frontend.open import open_checkpoint
from uaii.ir.diag import Diagnostic, Malformed, Unsupported, Usage

SMALL = gguf_bytes([("general.architecture", "str", "llama")])


def put(path: Path, data: bytes = SMALL) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_folder_and_file(tmp_path: Path) -> None:
    hf: Checkpoint = open_checkpoint(folder(tmp_path / "hf"))
    gguf: Checkpoint = open_checkpoint(str(put(tmp_path / "m.gguf")))
    assert (hf.format, hf.config_file, gguf.format, gguf.config_file) == ("hf", "config.json", "gguf", "m.gguf")
    assert isinstance(open_checkpoint(put(tmp_path / "no_suffix")), Gguf)


def test_folder_with_one_gguf_model(tmp_path: Path) -> None:
    assert isinstance(open_checkpoint(put(tmp_path / "a/m.gguf").parent), Gguf)
    for i in range(2):
        pairs = [("split.no", "u16", i), ("split.count", "u16", 2), ("split.tensors.count", "i32", 2)]
        put(tmp_path / f"b/m-0000{i + 1}-of-00002.gguf", gguf_bytes(pairs, [Raw(f"w{i}", (1,), 0, bytes(4))]))
    assert list(open_checkpoint(tmp_path / "b").tensors) == ["w0", "w1"]
    put(tmp_path / "b/other.gguf")
    with pytest.raises(Usage, match="holds 2 GGUF models: m-00001-of-00002.gguf, other.gguf") as err:
        open_checkpoint(tmp_path / "b")
    assert err.value.code == "U002"
    put(tmp_path / "c/m.gguf.part1of2")
    with pytest.raises(Malformed, match="is a slice of the bytes of m.gguf"):
        open_checkpoint(tmp_path / "c")


def test_safetensors_come_before_a_gguf_beside_them(tmp_path: Path) -> None:
    put(folder(tmp_path) / "m.gguf")
    model = open_checkpoint(tmp_path)
    assert isinstance(model, HfFolder) and model.notes == ["m.gguf ignored: the folder has safetensors"]


def test_inspect_reaches_the_reader(tmp_path: Path) -> None:
    (folder(tmp_path / "hf") / "model.safetensors").unlink()
    cut = put(tmp_path / "cut.gguf", gguf_bytes([], [Raw("w", (4,), 0, bytes(16))])[:-1])
    for path, code in ((tmp_path / "hf", "H320"), (cut, "G311")):
        assert [e.code for e in open_checkpoint(path, inspect=True).blocked()] == [code]
        with pytest.raises(Malformed):
            open_checkpoint(path)


@pytest.mark.parametrize(("path", "kind", "code", "reason"), [
    ("hf/model.safetensors", Usage, "U002", "model.safetensors is one file of a model: give the folder"),
    ("hf/config.json", Usage, "U002", "config.json is one file of a model"),
    ("x.onnx", Usage, "U002", "give the folder"),
    ("x.bin", Usage, "U002", "give the folder"), ("notes.txt", Usage, "U002", "is not a checkpoint"),
    ("artifact", Usage, "U002", "is a compiled artifact"), ("absent", Usage, "U001", "does not exist"),
    ("sliced.gguf", Usage, "U001", "cat "), ("sliced.gguf.part1of2", Malformed, "G314", "is a slice"),
    ("pipe", Usage, "U002", "is not a checkpoint"), ("text.gguf", Malformed, "G300", "is not a GGUF file"),
    ("n" * 300, Usage, "U003", "cannot be read")])
def test_paths_that_are_no_checkpoint(tmp_path: Path, path: str, kind: type[Diagnostic], code: str,
                                      reason: str) -> None:
    folder(tmp_path / "hf")
    put(tmp_path / "artifact/uaii.json", b"{}")
    os.mkfifo(tmp_path / "pipe")
    for name in ("text.gguf", "x.onnx", "x.bin", "notes.txt", "sliced.gguf.part1of2"):
        put(tmp_path / name, b"some text")
    with pytest.raises(kind) as err:
        open_checkpoint(tmp_path / path)
    assert err.value.code == code and reason in str(err.value), str(err.value)


def test_a_hub_id_is_pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Usage, match="Qwen/Qwen3-0.6B does not exist") as err:
        open_checkpoint("Qwen/Qwen3-0.6B")
    assert err.value.hint.endswith("uaii pull Qwen/Qwen3-0.6B")


@pytest.mark.parametrize("name", ["gpt-4", "gpt-4o-mini", "GPT-3.5-turbo", "openai/gpt-5", "chatgpt", "gemini-1.5-pro",
                                  "google/gemini-2.5-flash", "o3-mini"])
def test_models_without_public_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Unsupported, match="API-only model: no weights exist") as err:
        open_checkpoint(name)
    assert err.value.code == "U004" and "gpt-oss or GPT-2, or Gemma" in err.value.hint
    folder(tmp_path / name)
    assert isinstance(open_checkpoint(name), HfFolder)


@pytest.mark.parametrize("name",
                         ["gpt2", "gpt-oss-20b", "gpt4all-j", "gpt-4chan", "google/gemma-2-2b", "org/gpt-4-clone"])
def test_names_that_only_look_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Usage) as err:
        open_checkpoint(name)
    assert err.value.code == "U001"
