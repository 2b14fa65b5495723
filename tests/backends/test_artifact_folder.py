"""The artifact folder appears whole or not at all, replaces only what uaii wrote, and says why it cannot be written."""
from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from uaii.backends.onnx import artifact
from uaii.backends.ort.manifest import read_manifest
from uaii.ir.diag import Malformed, Usage

MANIFEST = {"family": "llama", "target": "cpu", "context_length": 8, "vocab_size": 8, "layers": 1, "kv_heads": 1,
            "head_dim": 8, "kv_in_place": True, "stop_ids": []}


def make(out: Path, text: str = "graph", **more: str) -> None:
    with artifact.folder(out) as temp:
        assert temp.parent == out.parent and temp != out
        for name, content in {"model.onnx": text, **more}.items():
            (temp / name).write_text(content)
        artifact.finish(temp, MANIFEST)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_folder_that_ends_well_is_there_and_readable(tmp_path: Path) -> None:
    make(tmp_path / "out", extra="x")
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == ["extra", "model.onnx", "uaii.json"]
    assert read_manifest(tmp_path / "out", hashes=True).files == {"model.onnx": 5, "extra": 1}
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), MemoryError()])
def test_a_block_that_raises_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), artifact.folder(tmp_path / "out") as temp:
        (temp / "model.onnx").write_text("half")
        raise error
    assert names(tmp_path) == []


def test_a_block_that_raises_leaves_the_older_artifact(tmp_path: Path) -> None:
    make(tmp_path / "out", "old")
    with pytest.raises(ValueError), artifact.folder(tmp_path / "out") as temp:
        (temp / "model.onnx").write_text("new")
        raise ValueError
    assert names(tmp_path) == ["out"] and (tmp_path / "out" / "model.onnx").read_text() == "old"
    read_manifest(tmp_path / "out", hashes=True)


def test_an_older_artifact_is_replaced_whole(tmp_path: Path) -> None:
    make(tmp_path / "out", "old", gone="from before")
    make(tmp_path / "out", "new", added="now")
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == ["added", "model.onnx", "uaii.json"]
    assert (tmp_path / "out" / "model.onnx").read_text() == "new"


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    make(tmp_path / "out")
    assert names(tmp_path / "out") == ["model.onnx", "uaii.json"]


def refused(out: Path, code: str) -> Usage:
    with pytest.raises(Usage) as caught:
        make(out)
    assert caught.value.code == code and caught.value.exit_code == 2
    return caught.value


def test_files_that_are_no_artifacts_are_never_touched(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(out)
    (out / "thesis.tex").write_text("years of work")
    assert "thesis.tex" in refused(out, "O701").says
    assert (out / "thesis.tex").read_text() == "years of work" and names(tmp_path) == ["out"]
    read_manifest(out, hashes=True)


@pytest.mark.parametrize("text", ["[]", "3", "null", "{", "{}", '{"files": 3}', '{"files": {"notes.txt": 3'])
def test_a_strange_manifest_vouches_for_nothing(tmp_path: Path, text: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "uaii.json").write_text(text)
    (out / "notes.txt").write_text("mine")
    assert "notes.txt" in refused(out, "O701").says
    assert names(out) == ["notes.txt", "uaii.json"]


def test_a_file_or_a_link_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link", "dangling"):
        assert "is not a folder" in refused(tmp_path / name, "O701").says
    assert (tmp_path / "file").read_text() == "mine" and names(tmp_path / "real") == []


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file" / "out", "O702")
    refused(tmp_path / "no" / "such" / "out", "O702")
    refused(Path("/proc/uaii-out"), "O702")


def test_what_killed_compiles_left_is_removed_and_what_others_do_is_not(tmp_path: Path) -> None:
    dead = _dead_pid()
    left = [tmp_path / f".out.uaii-{dead}-abc", tmp_path / f".out.uaii-{dead}-def"]
    kept = [tmp_path / f".out.uaii-{os.getppid()}-abc", tmp_path / f".other.uaii-{dead}-abc", tmp_path / ".out.uaii-x-abc",
            tmp_path / "out.uaii"]
    for p in (*left, *kept):
        p.mkdir()
        (p / "model.onnx").write_text("half")
    make(tmp_path / "out")
    assert names(tmp_path) == sorted(["out", *(p.name for p in kept)])


def _dead_pid() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def test_the_manifest_is_the_last_file_and_lists_all(tmp_path: Path) -> None:
    """Without it a reader refuses the folder, so a folder that is half there is never run."""
    (tmp_path / "model.onnx").write_text("graph")
    with pytest.raises(Malformed) as caught:
        read_manifest(tmp_path)
    assert caught.value.code == "S601"
    whole = artifact.finish(tmp_path, MANIFEST)
    assert list(json.loads((tmp_path / "uaii.json").read_text())) == list(whole)
    assert list(whole)[0] == "format" and list(whole)[-1] == "complete" and set(whole["files"]) == {"model.onnx"}
    (tmp_path / "model.onnx").write_text("grafh")
    read_manifest(tmp_path)
    with pytest.raises(Malformed):
        read_manifest(tmp_path, hashes=True)


def test_relative_places_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("out").absolute())
    with artifact.folder(Path("out2/")) as temp:
        artifact.finish(temp, MANIFEST)
    assert names(tmp_path) == ["out", "out2"]
