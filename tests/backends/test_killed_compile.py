"""A compile that is killed leaves nothing that looks finished, and the next one clears up after it."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import killed_compile
import pytest
from family_cases.llama import PLAIN
from tiny_models import write_folder

from uaii.backends.onnx import artifact
from uaii.backends.ort.manifest import read_manifest
from uaii.compiler import compile_model
from uaii.ir.diag import Malformed

ROOT = Path(__file__).parent.parent.parent
# Over an older artifact the first rename moves that one aside and the second puts the new one in its place.
EARLY = ("weight:1", "weight:5", "weight:9", "finish:before", "finish:after")
OVER_OLD = (*EARLY, "rename:1:before", "rename:1:after", "rename:2:before", "rename:2:after")
FRESH = (*EARLY, "rename:1:before", "rename:1:after")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("checkpoint") / "tiny", PLAIN.set("one layer", num_hidden_layers=1))


@pytest.fixture(scope="module")
def killed(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For `fresh` and `old`, the folder that holds one folder per moment."""
    tops = {"fresh": tmp_path_factory.mktemp("fresh"), "old": tmp_path_factory.mktemp("old")}
    for name, moments in (("fresh", FRESH), ("old", OVER_OLD)):
        for m in (*moments, "never"):
            (tops[name] / m.replace(":", "-")).mkdir()
            if name == "old":
                with artifact.folder(tops[name] / m.replace(":", "-") / "artifact") as temp:
                    (temp / "model.onnx").write_text("old")
                    artifact.finish(temp, {"family": "old", "target": "cpu", "context_length": 8, "vocab_size": 8, "layers": 1,
                                           "kv_in_place": True, "stop_ids": []})
        env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        done = subprocess.run([sys.executable, killed_compile.__file__, str(checkpoint), str(tops[name]), *moments, "never"],
                              env=env, capture_output=True, text=True, check=False)
        assert done.stdout.splitlines() == [*(f"{m} killed" for m in moments), "never ended 0"], done.stderr
    return tops


def accepted(folder: Path) -> str:
    """The family that a reader sees, checked by hash; empty when it refuses the folder."""
    try:
        return read_manifest(folder, hashes=True).family
    except Malformed as error:
        assert error.code == "S601"
        return ""


@pytest.mark.parametrize(("start", "moment"), [*(("fresh", m) for m in FRESH), *(("old", m) for m in OVER_OLD)])
def test_nothing_half_done_is_accepted_and_the_next_compile_clears_up(start: str, moment: str, killed: dict[str, Path],
                                                                      checkpoint: Path) -> None:
    top = killed[start] / moment.replace(":", "-")
    out = top / "artifact"
    left = [p for p in top.iterdir() if p != out]
    placed = moment in ("rename:2:after", "rename:1:after") if start == "fresh" else moment == "rename:2:after"
    moved = start == "old" and moment in ("rename:1:after", "rename:2:before")
    assert left, "the killed compile must have left its temporary folder: else it was killed elsewhere"
    assert accepted(out) == ("llama" if placed else "" if moved or start == "fresh" else "old")
    if moment in EARLY[:4]:
        assert not any(accepted(p) for p in left)
    compile_model(checkpoint, out)
    assert [p.name for p in top.iterdir()] == ["artifact"] and accepted(out) == "llama"


def test_a_compile_that_is_not_killed_ends_well(killed: dict[str, Path]) -> None:
    for top in killed.values():
        assert [p.name for p in (top / "never").iterdir()] == ["artifact"]
        assert accepted(top / "never" / "artifact") == "llama"
