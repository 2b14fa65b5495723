"""`uaii verify`: what it prints, its exit codes, and what it says of a source that is absent or another one."""
from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tiny_llama_for_cli as tiny
from click.testing import CliRunner, Result
from edited_artifact import initializer, restamped, with_bytes
from family_cases import llama
from quantised_gguf import MIXED, write_quantised

from uaii.cli.verify import main
from uaii.compiler import compile_model


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    compile_model(tiny.folder(tmp_path / "model"), tmp_path / "out")
    return tmp_path / "out"


def run(*options: object) -> Result:
    return CliRunner().invoke(main, [str(option) for option in options])


def test_the_text_says_what_was_compared_with_which_bound(artifact: Path) -> None:
    result = run(artifact, "--prompt", "hello there", "--passes")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[:6]] == ["files", "source", "weights", "graph", "text", "reference"]
    assert "as recorded" in lines[1] and str(artifact.parent / "model") in lines[1] and '"hello there"' in lines[4]
    assert lines[2].endswith("15 of 15 are the checkpoint's, bit for bit") and lines[3].endswith("as this compiler writes it")
    assert lines[5].endswith("NumPy, f64, on the graph before any pass")
    ran = [line for line in lines if line.startswith(("whole prompt", "two parts", "token by token"))]
    assert len(ran) == 3 and all("difference <= 0.001, same best token" in line and line.endswith("ok") for line in ran)
    assert any(line.startswith("fuse-skip-norm") and line.endswith("ok") for line in lines)
    assert lines[-1] == "verdict: PASS" and result.stderr == ""


def test_the_json_form_has_everything(artifact: Path) -> None:
    said = json.loads(run(artifact, "--token-ids", "5,6,7,8", "--format", "json").stdout)
    assert (said["verdict"], said["prompt_tokens"], said["reference"], said["passes"]) == ("PASS", [5, 6, 7, 8], "lower", [])
    assert said["source"]["family"] == "llama" and said["weights"]["compared"] == 15 and "error" not in said
    assert set(said["files"]) >= {"model.onnx", "model.onnx.data", "tokenizer.json"}
    run_ = said["runs"][0]
    assert run_["ok"] and 0 < run_["difference"] < 1e-5 and run_["bound"] and run_["kl"] < 1e-9 and 0 <= run_["position"] < 4


def test_a_fail_prints_report_and_error_and_exits_with_1(artifact: Path) -> None:
    with_bytes(artifact, initializer(artifact, "weights/0.ffn.down")["offset"] + 3, lambda byte: byte ^ 0x40)
    result = run(artifact)
    assert result.exit_code == 1 and result.stdout.splitlines()[-1] == "verdict: FAIL" and "14 of 15" in result.stdout
    assert result.stderr.startswith(f"error[R101]: {artifact} does not compute what ")
    assert "report it with this output" in result.stderr
    said = json.loads(run(artifact, "--format", "json").stdout)
    assert (said["verdict"], said["error"]["code"], said["weights"]["differing"]) == ("FAIL", "R101", ["0.ffn.down"])


def test_damaged_files_are_told_before_anything_runs(artifact: Path) -> None:
    data = bytearray((artifact / "model.onnx.data").read_bytes())
    data[100] ^= 1
    (artifact / "model.onnx.data").write_bytes(data)
    (artifact / "tokenizer.json").unlink()
    result = run(artifact)
    assert result.exit_code == 4 and result.stdout == "" and "error[S601]" in result.stderr
    assert "model.onnx.data has sha256" in result.stderr and "tokenizer.json is missing" in result.stderr


def test_a_graph_that_is_none(artifact: Path) -> None:
    (artifact / "model.onnx").write_bytes(b"\xff" * 100)
    restamped(artifact)
    result = run(artifact)
    assert result.exit_code == 4 and "error[S604]" in result.stderr


def test_a_strange_file_is_a_note(artifact: Path) -> None:
    (artifact / "notes.txt").write_text("x")
    result = run(artifact)
    assert result.exit_code == 0 and "note: not in uaii.json, not looked at: notes.txt" in result.stdout


# --- the source

def test_without_the_source_only_files_are_verified_and_that_is_no_success(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "model").rename(tmp_path / "moved")
    result = run(artifact)
    assert result.exit_code == 2 and "error[U070]: only the files were verified" in result.stderr and "--source" in result.stderr
    assert result.stdout.splitlines()[0].startswith("files") and result.stdout.splitlines()[-1] == "verdict: NOT DONE"
    said = json.loads(run(artifact, "--format", "json").stdout)
    assert (said["verdict"], said["runs"], said["error"]["code"]) == ("NOT DONE", [], "U070")
    assert run(artifact, "--source", tmp_path / "moved").exit_code == 0
    assert run(artifact, "--source", tmp_path / "nowhere").exit_code == 2


def test_another_source_is_told_by_what_differs(artifact: Path, tmp_path: Path) -> None:
    before = (tmp_path / "model" / "config.json").stat().st_size
    shutil.rmtree(tmp_path / "model")
    tiny.folder(tmp_path / "model", rms_norm_eps=1e-6, num_hidden_layers=2)
    size = (tmp_path / "model" / "config.json").stat().st_size
    result = run(artifact)
    assert result.exit_code == 2 and "error[U071]" in result.stderr and "config.json: header sha256" in result.stderr
    assert (f"config.json: bytes {size}, uaii.json says {before}" in result.stderr) == (size != before)
    assert "model.safetensors" not in result.stderr and result.stdout.splitlines()[-1] == "verdict: NOT DONE"
    assert "error[U071]" in run(artifact, "--source", tiny.gguf_file(tmp_path / "x.gguf")).stderr


def test_a_file_under_another_name_is_the_same_source(tmp_path: Path) -> None:
    file = write_quantised(tmp_path / "model.gguf", llama.PLAIN, MIXED)
    compile_model(file, tmp_path / "out")
    renamed = file.rename(tmp_path / "other.gguf")
    result = run(tmp_path / "out", "--source", renamed, "--tokens", 6)
    assert result.exit_code == 0, result.stderr
    assert "note: the source was called model.gguf when it was compiled" in result.stdout
    assert "noise <= " in result.stdout and " int8 " in result.stdout


def test_options_of_the_manifest_that_are_no_options(artifact: Path) -> None:
    said = json.loads((artifact / "uaii.json").read_text())
    del said["options"]["context"]
    (artifact / "uaii.json").write_text(json.dumps(said))
    result = run(artifact)
    assert result.exit_code == 4 and "error[S603]" in result.stderr and "options.context" in result.stderr


def test_ids_that_are_no_ids(artifact: Path) -> None:
    assert "error[U033]" in run(artifact, "--token-ids", "1,x").stderr
    assert run(artifact, "--tokens", "0").exit_code == 2
