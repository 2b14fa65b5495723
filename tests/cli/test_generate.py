"""`uaii generate`: compiles into the cache once, runs as uaii-run does, and reports as uaii inspect does."""
from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny_llama_for_cli as tiny
from click.testing import CliRunner, Result
from hub_cases import SHARDS, Bench, error
from hub_server import status

import uaii
import uaii.compiler
from uaii.cli.generate import key
from uaii.cli.generate import main as generate
from uaii.cli.inspect import main as inspect
from uaii.cli.run import main as run_artifact

ROOT = Path(uaii.__file__).resolve().parent.parent
ASK = ("--token-ids", "5,6,7", "--max-new-tokens", "6", "--ignore-eos", "--format", "json")
OPTIONS: dict[str, Any] = {"target": "cpu", "weights": "auto", "accept": (), "context": None}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("UAII_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def ask(path: Path | str, *options: str) -> Result:
    return CliRunner().invoke(generate, ["--model", str(path), *options])


def tokens(result: Result) -> list[int]:
    assert result.exit_code == 0, result.stderr
    said: list[int] = json.loads(result.stdout)["tokens"]
    return said


def artifacts(cache: Path) -> list[Path]:
    return sorted((cache / "artifacts").iterdir())


@pytest.mark.parametrize("form", ["folder", "sharded", "gguf"])
def test_tokens_are_those_of_compile_and_run(form: str, tmp_path: Path, cache: Path) -> None:
    model = tiny.GOOD[form](tmp_path / "model")
    out = uaii.compile(model, tmp_path / "out").folder
    want = json.loads(CliRunner().invoke(run_artifact, [str(out), *ASK]).stdout)["tokens"]
    assert len(want) == 6
    assert tokens(ask(model, *ASK)) == want
    assert len(artifacts(cache)) == 1


def test_every_option_of_a_run_is_there() -> None:
    assert {p.name for p in run_artifact.params} - {"artifact"} <= {p.name for p in generate.params}


def test_a_second_run_compiles_nothing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.folder(tmp_path / "model")
    first = tokens(ask(model, *ASK))
    monkeypatch.setattr(uaii.compiler, "compile_model", None)
    assert tokens(ask(model, *ASK)) == first


def test_text_and_notes_go_their_ways(tmp_path: Path, cache: Path) -> None:
    result = ask(tiny.folder(tmp_path / "model"), "--prompt", "Hello", "--max-new-tokens", "3", "--ignore-eos")
    assert result.exit_code == 0
    assert "compiled into" in result.stderr and "note" not in result.stdout
    assert result.stdout.endswith("\n")


def test_other_weights_under_the_same_header_are_compiled_anew(tmp_path: Path, cache: Path) -> None:
    model = tiny.folder(tmp_path / "model")
    first = tokens(ask(model, *ASK))
    file = model / "model.safetensors"
    head = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    text, before = file.read_bytes(), file.stat().st_mtime_ns
    file.write_bytes(text[:head] + bytes(len(text) - head))
    os.utime(file, ns=(before + 10_000_000, before + 10_000_000))
    assert tokens(ask(model, *ASK)) != first
    assert len(artifacts(cache)) == 2


def edit_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").write_text((model / "tokenizer.json").read_text() + "\n")


def add_template(model: Path) -> None:
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tool.jinja").write_text("{{ x }}")


def edit_config(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))


@pytest.mark.parametrize("change", [edit_tokenizer, add_template, edit_config])
def test_the_key_covers_every_file_that_is_read(change: Any, tmp_path: Path) -> None:
    model = tiny.folder(tmp_path / "model")
    before = key(model, OPTIONS)
    assert key(model, OPTIONS) == before
    change(model)
    assert key(model, OPTIONS) != before


@pytest.mark.parametrize("option", [{"weights": "f32"}, {"target": "cuda"}, {"accept": ("x",)}, {"context": 200_000}])
def test_the_key_covers_the_options(option: dict[str, Any], tmp_path: Path) -> None:
    model = tiny.folder(tmp_path / "model")
    assert key(model, OPTIONS | option) != key(model, OPTIONS)


def test_the_key_covers_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.folder(tmp_path / "model")
    before = key(model, OPTIONS)
    monkeypatch.setattr("uaii.cli.generate.__version__", "99")
    assert key(model, OPTIONS) != before


def test_a_damaged_artifact_is_made_again(tmp_path: Path, cache: Path) -> None:
    model = tiny.folder(tmp_path / "model")
    first = tokens(ask(model, *ASK))
    (out,) = artifacts(cache)
    (out / "model.onnx.data").write_bytes(b"")
    assert tokens(ask(model, *ASK)) == first


def test_a_wrong_option_is_told_before_anything_is_compiled(tmp_path: Path, cache: Path) -> None:
    result = ask(tiny.folder(tmp_path / "model"), "--prompt", "a", "--token-ids", "1", "--format", "json")
    assert (error(result)["code"], result.exit_code, cache.exists()) == ("U030", 2, False)


@pytest.mark.parametrize("form", ["unread-key", "gptq-config", "missing-shard", "gguf-cut"])
def test_an_error_is_that_of_the_compile_and_of_inspect(form: str, tmp_path: Path, cache: Path) -> None:
    model = tiny.BAD[form](tmp_path / "model")
    report = CliRunner().invoke(inspect, [str(model)])
    result = ask(model, *ASK)
    says = error(result)["says"]
    assert f"blocked: {says}\n" in report.stdout
    assert result.exit_code == report.exit_code != 0
    assert not list((cache / "artifacts").iterdir() if (cache / "artifacts").exists() else [])


@pytest.mark.parametrize("form", [*list(tiny.GOOD)[:3], "unread-key", "gptq-config"])
def test_a_dry_run_is_inspect(form: str, tmp_path: Path, cache: Path) -> None:
    model = (tiny.GOOD | tiny.BAD)[form](tmp_path / "model")
    for options in ([], ["--weights", "f32"], ["--format", "json"]):
        report, dry = CliRunner().invoke(inspect, [str(model), *options]), ask(model, "--dry-run", *options)
        assert (dry.stdout, dry.exit_code) == (report.stdout, report.exit_code)
    assert not cache.exists()


# --- from the hub

def test_a_repository_is_pulled_once_and_compiled_once(bench: Bench) -> None:
    first = tokens(bench.uaii("generate", "--model", "org/tiny", *ASK))
    bench.hub.log.clear()
    assert tokens(bench.uaii("generate", "--model", "org/tiny", *ASK)) == first
    assert bench.hub.asked() == []
    assert list(bench.here.iterdir()) == []
    bench.hub.log.clear()
    assert tokens(bench.uaii("generate", "--model", "org/tiny", "--offline", *ASK)) == first
    assert bench.hub.log == []


def test_a_folder_of_that_name_wins(bench: Bench) -> None:
    tiny.folder(bench.here / "org" / "tiny")
    assert len(tokens(bench.uaii("generate", "--model", "org/tiny", *ASK))) == 6
    assert bench.hub.log == []


def test_an_incomplete_repository_is_not_compiled(bench: Bench) -> None:
    bench.hub.faults[SHARDS[1]] = [status(404)]
    result = bench.uaii("generate", "--model", "org/tiny", *ASK)
    assert (result.exit_code, error(result)["says"]) == (4, f"pull incomplete: missing shard {SHARDS[1]}")


@pytest.mark.parametrize(("name", "code"), [("gpt-4", "U004"), ("openai/gpt-4o", "U004"), ("./org/tiny", "U001"),
                                            ("x.gguf", "U001"), ("dir/x.gguf", "U001")])
def test_names_that_are_not_asked_for(bench: Bench, name: str, code: str) -> None:
    result = bench.uaii("generate", "--model", name, *ASK)
    assert (error(result)["code"], bench.hub.log) == (code, [])


def test_the_documented_path_runs_as_it_is_written(bench: Bench) -> None:
    """The commands of docs/pulling.md, word for word, with a hub that serves org/model."""
    bench.hub.repo = "org/model"
    tiny.gguf_file(bench.here / "model.gguf")
    text = (ROOT / "docs" / "pulling.md").read_text()
    commands = text.split("```sh\n")[1].split("```")[0].strip().splitlines()
    assert [c.split("#")[0].strip() for c in commands] == [
        "uaii pull org/model --outdir ./hf-model", 'uaii generate --model ./hf-model --prompt "Hello"',
        'uaii generate --model model.gguf --prompt "Hello"']
    for command in commands:
        program, *words = shlex.split(command, comments=True)
        result = bench.uaii(*words)
        assert (program, result.exit_code) == ("uaii", 0), result.stderr
    shutil.rmtree(bench.here / "hf-model")
