"""What makes a folder an artifact, and what refuses it."""
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from tiny_artifact import tiny_model, write_artifact, write_manifest

from uaii.backends.ort.session import Session
from uaii.ir.diag import Diagnostic, Malformed, Unsupported

TINY = tiny_model()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_artifact(tmp_path / "artifact", TINY)


def refusal(folder: Path, **options: object) -> Diagnostic:
    with pytest.raises(Diagnostic) as caught:
        Session.open(folder, **options)
    return caught.value


def edit(folder: Path, **entries: object) -> Path:
    raw = json.loads((folder / "uaii.json").read_text())
    (folder / "uaii.json").write_text(json.dumps(raw | entries))
    return folder


def test_folder_and_graph_path_both_open(folder: Path) -> None:
    for path in (folder, str(folder), folder / "model.onnx"):
        session = Session.open(path)
        assert (session.vocab_size, session.context_length, session.provider) == (40, 64, "CPUExecutionProvider")


@pytest.mark.parametrize("name", ["uaii.json", "model.onnx", "model.onnx.data", "tokenizer.json"])
def test_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    error = refusal(folder)
    assert (error.code, error.exit_code) == ("S601", 4)
    assert "incomplete artifact" in str(error) and f"{name} is missing" in str(error)


def test_every_wrong_size_is_named_at_once(folder: Path) -> None:
    data = (folder / "model.onnx.data").read_bytes()
    (folder / "model.onnx.data").write_bytes(data[:-1])
    (folder / "tokenizer.json").unlink()
    error = refusal(folder)
    assert isinstance(error, Malformed)
    assert f"model.onnx.data has {len(data) - 1} bytes, uaii.json says {len(data)}" in str(error)
    assert "tokenizer.json is missing" in str(error)


def test_hashes_are_compared_on_request(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("[]")
    Session.open(folder)
    error = refusal(folder, hashes=True)
    assert error.code == "S601" and "tokenizer.json has sha256" in str(error)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1', "\xff", "[" * 100_000])
def test_broken_manifest_is_incomplete(folder: Path, text: str) -> None:
    (folder / "uaii.json").write_bytes(text.encode("latin-1"))
    assert refusal(folder).code in ("S601", "S602")


def test_no_folder(tmp_path: Path) -> None:
    assert "there is no such folder" in str(refusal(tmp_path / "nowhere"))


@pytest.mark.parametrize("version", [2, 0, "1", None, True, 1.5])
def test_other_format_is_named(folder: Path, version: object) -> None:
    error = refusal(edit(folder, format=version))
    assert isinstance(error, Unsupported) and error.code == "S602" and json.dumps(version) in error.says


def test_unfinished_compile(folder: Path) -> None:
    assert refusal(edit(folder, complete=False)).code == "S601"


@pytest.mark.parametrize(("key", "value"), [
    ("context_length", 0), ("context_length", "64"), ("context_length", True), ("vocab_size", None), ("layers", 0),
    ("kv_in_place", 1), ("stop_ids", [40]), ("stop_ids", [-1]), ("stop_ids", 2), ("stop_ids", [True]), ("family", 3),
    ("head_dim", 0)])
def test_wrong_entry_is_named(folder: Path, key: str, value: object) -> None:
    error = refusal(edit(folder, **{key: value}))
    assert error.code == "S603" and key in error.says and error.exit_code == 4


@pytest.mark.parametrize("name", ["../model.onnx", "/etc/passwd", "a/../../b", "..\\x", "C:\\x", "", "\\x", "x\0"])
def test_names_stay_in_the_folder(folder: Path, name: str) -> None:
    error = refusal(edit(folder, files={"model.onnx": {"bytes": 1}, name: {"bytes": 1}}))
    assert error.code == "S603"


def test_graph_must_be_listed(folder: Path) -> None:
    assert "model.onnx is not among the files" in str(refusal(edit(folder, files={})))


@pytest.mark.parametrize(("key", "value"), [("layers", 3), ("kv_heads", 4), ("head_dim", 8), ("vocab_size", 41)])
def test_manifest_and_graph_must_agree(folder: Path, key: str, value: int) -> None:
    error = refusal(edit(folder, **{key: value}))
    assert error.code == "S607" and key in error.says and str(value) in error.says


def test_heads_may_be_left_to_the_graph(folder: Path) -> None:
    assert Session.open(edit(folder, kv_heads=None, head_dim=None)).logits([1]).shape == (1, 40)


@pytest.mark.parametrize(("name", "keep"), [("model.onnx", 0.5), ("model.onnx.data", 0.01)])
def test_cut_file_with_a_matching_manifest(folder: Path, name: str, keep: float) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:int(len(data) * keep)])
    write_manifest(folder, TINY)
    error = refusal(folder)
    assert error.code == "S604" and error.exit_code == 4 and error.notes


def link(source: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(os.path.relpath(source, place.parent))


@pytest.mark.parametrize("copied", [set(), {"model.onnx", "uaii.json"}, {"uaii.json"}])
def test_linked_cache_layouts_load(folder: Path, tmp_path: Path, copied: set[str]) -> None:
    snapshot = tmp_path / "hub" / "snapshots" / "abc"
    for number, path in enumerate(sorted(folder.iterdir())):
        blob = tmp_path / "hub" / "blobs" / f"{number:040x}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        path.rename(blob)
        if path.name in copied:
            snapshot.mkdir(parents=True, exist_ok=True)
            (snapshot / path.name).write_bytes(blob.read_bytes())
        else:
            link(blob, snapshot / path.name)
    np.testing.assert_allclose(Session.open(snapshot).logits([3, 1, 4]), TINY.logits([3, 1, 4]), atol=1e-4)


def test_running_writes_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def state() -> dict[str, tuple[int, int]]:
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in tmp_path.rglob("*")}

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    before = state()
    Session.open(folder).logits([1, 2, 3])
    assert state() == before
    folder.chmod(stat.S_IRWXU)
