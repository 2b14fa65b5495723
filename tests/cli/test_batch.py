"""`uaii-run --batch`: answers equal single runs, what a line may say, errors a line, and going on where it stopped."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from speaking_artifact import BANG, END, HELLO, WORLD, write_babbler, write_speaker

from uaii.backends.ort.session import Session
from uaii.cli.run import main
from uaii.compiler import Artifact
from uaii.model import load

Lines = list[Any]
PROMPTS = ["The capital of France is", "Water boils at", "def add(a, b):", "1, 2, 3,", "Once upon a time",
           "The opposite of hot is",
           "import numpy", "Bonjour, je", "The sun rises in", "A", "To be or not", "Roses are red,", "The first president",
           "E = mc", "In 1969,", "Python is", "The largest planet", "Die Katze", "Hello", "Two plus two"]


@pytest.fixture(scope="module")
def art(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speaker")
    write_speaker(folder)
    return folder


def batch(folder: Path, place: Path, lines: Lines, *options: str) -> Result:
    source = place / "in.jsonl"
    source.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return CliRunner().invoke(main, [str(folder), "--batch", str(source), "--out", str(place / "out.jsonl"), *options])


def answers(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place / "out.jsonl").read_text().splitlines()]


def test_twenty_prompts_equal_twenty_single_runs(smollm2_artifact: Artifact, tmp_path: Path) -> None:
    same(smollm2_artifact.folder, tmp_path, 8)


@pytest.mark.parametrize("size", ["1", "7", "20"])
def test_rows_that_run_together_equal_single_runs(tmp_path: Path, size: str) -> None:
    """With f32 weights; packed ones round activations, and one row and several differently."""
    write_babbler(tmp_path / "art")
    same(tmp_path / "art", tmp_path, 12, "--batch-size", size)


def same(folder: Path, place: Path, count: int, *options: str) -> None:
    model = load(folder)
    single = [model.start(model.tokenizer.encode(text), max_new_tokens=count).run() for text in PROMPTS]
    result = batch(folder, place, [{"prompt": text} for text in PROMPTS], "--max-new-tokens", str(count), *options)
    assert result.exit_code == 0, result.stderr
    made = answers(place)
    assert [a["tokens"] for a in made] == [r.tokens for r in single] and [a["text"] for a in made] == [r.text for r in single]
    assert len({a["text"] for a in made}) > 10 and [a["id"] for a in made] == list(range(1, 21))
    assert "20 done, 0 failed, 0 skipped" in result.stderr


@pytest.mark.parametrize("size", ["1", "4"])
def test_what_a_line_may_say(art: Path, tmp_path: Path, size: str) -> None:
    result = batch(art, tmp_path, [
        {"prompt": "?", "id": "q"}, {"token_ids": [4]}, {"messages": [{"role": "user", "content": "hi"}]},
        "", {"prompt": "?", "max_new_tokens": 2}, {"prompt": "?", "stop": "lo wo"}, {"prompt": "?", "stop": ["d", "w"]},
        {"prompt": "?", "ignore_eos": True, "max_new_tokens": 6}, {"prompt": "?", "temperature": 9.0, "seed": 5, "top_k": None},
    ], "--batch-size", size, "--max-new-tokens", "4")
    assert result.exit_code == 0, result.stderr
    made = answers(tmp_path)
    whole = [HELLO, WORLD, BANG, END]
    assert [a["id"] for a in made] == ["q", 2, 3, 5, 6, 7, 8, 9] and [a["line"] for a in made][3] == 5
    assert [a["tokens"] for a in made[:4]] == [whole, whole, whole, whole[:2]]
    assert made[2]["prompt_tokens"] == load(art).chat_ids([{"role": "user", "content": "hi"}])
    assert [a["text"] for a in made[4:6]] == ["hel", "hello "] and len(made[6]["tokens"]) == 6
    alone = CliRunner().invoke(main, [str(art), "--prompt", "?", "--temperature", "9", "--seed", "5", "--max-new-tokens", "4",
                                      "--format", "json"])
    assert made[7]["tokens"] == json.loads(alone.stdout)["tokens"] != whole


def test_a_line_wins_over_the_command(art: Path, tmp_path: Path) -> None:
    drawn = {"prompt": "?", "temperature": 9, "seed": 5}
    batch(art, tmp_path, [drawn, {"prompt": "?"}], "--greedy")
    made = answers(tmp_path)
    assert made[0]["tokens"] != made[1]["tokens"] == [HELLO, WORLD, BANG, END]
    (tmp_path / "out.jsonl").unlink()
    batch(art, tmp_path, [{"prompt": "?"}, {"prompt": "?", "greedy": True}], "--temperature", "9", "--seed", "5")
    assert [a["tokens"] for a in answers(tmp_path)] == [a["tokens"] for a in made]


def test_prompts_as_a_conversation(art: Path, tmp_path: Path) -> None:
    batch(art, tmp_path, [{"prompt": "hi<|end|>"}], "--chat", "--system", "s")
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi<|end|>"}]
    made = answers(tmp_path)[0]
    notes: list[str] = []
    assert made["prompt_tokens"] == load(art).chat_ids(turns, note=notes.append) and made["notes"] == notes != []


WRONG = [("{", "not JSON"), ("3", "not an object"), ({}, "needs one of"), ({"prompt": "a", "token_ids": [1]}, "needs one of"),
         ({"prompt": "a", "temprature": 1}, "nobody reads temprature"), ({"prompt": 3}, "prompt must be str"),
         ({"prompt": "a", "max_new_tokens": "3"}, "max_new_tokens must be int"), ({"prompt": "a", "top_k": True}, "must be int"),
         ({"prompt": "a", "ignore_eos": 1}, "ignore_eos must be bool"), ({"token_ids": [1, "2"]}, "whole numbers"),
         ({"token_ids": [9999]}, "9999"), ({"token_ids": []}, "no tokens"), ({"prompt": "a" * 99}, "more than the context"),
         ({"prompt": "a", "stop": [3]}, "stop strings"), ({"messages": ["hi"]}, "must be an object"),
         ({"prompt": "a", "top_p": 4}, "top_p"), ({"prompt": "a", "max_new_tokens": -1}, "max_new_tokens")]


@pytest.mark.parametrize("size", ["1", "5"])
def test_a_line_that_fails_does_not_stop_the_others(art: Path, tmp_path: Path, size: str) -> None:
    lines = [line for wrong, _ in WRONG for line in (wrong, {"prompt": "?"})]
    result = batch(art, tmp_path, lines, "--batch-size", size, "--format", "json")
    made = answers(tmp_path)
    assert result.exit_code == 0 and json.loads(result.stdout) == {"done": len(WRONG), "failed": len(WRONG), "skipped": 0}
    for (_, says), failed, good in zip(WRONG, made[::2], made[1::2], strict=True):
        assert says in failed["error"]["says"] and "tokens" not in failed, failed
        assert good["text"] == "hello world!" and "error" not in good


def test_a_row_that_fails_while_running_leaves_the_others(art: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefill = Session.prefill

    def failing(self: Session, ids: Any, *args: Any, **kwargs: Any) -> Any:
        if list(ids) == [5 + ord("x")]:
            self.checked([10**6])
        return prefill(self, ids, *args, **kwargs)

    monkeypatch.setattr(Session, "prefill", failing)
    batch(art, tmp_path, [{"prompt": text} for text in "?x?"], "--batch-size", "3")
    assert [a.get("text") or a["error"]["code"] for a in answers(tmp_path)] == ["hello world!", "S611", "hello world!"]


def test_going_on_where_it_stopped(art: Path, tmp_path: Path) -> None:
    lines: Lines = [{"prompt": "?", "id": i} for i in "abcde"]
    batch(art, tmp_path, lines)
    out = tmp_path / "out.jsonl"
    whole = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(whole[:2]) + whole[2][:40])
    result = batch(art, tmp_path, lines)
    assert "3 done, 0 failed, 2 skipped" in result.stderr
    assert out.read_bytes().splitlines(keepends=True)[:2] == whole[:2] and [a["id"] for a in answers(tmp_path)] == list("abcde")
    out.write_bytes(whole[0] + b'{"id": "b' + b"x" * 9999)
    assert "4 done" in batch(art, tmp_path, lines).stderr and [a["id"] for a in answers(tmp_path)] == list("abcde")
    before = out.read_bytes()
    assert "0 done, 0 failed, 5 skipped" in batch(art, tmp_path, lines).stderr and out.read_bytes() == before


def test_an_output_of_something_else_is_left_alone(art: Path, tmp_path: Path) -> None:
    batch(art, tmp_path, [{"prompt": "?"}])
    out = tmp_path / "out.jsonl"
    before = out.read_bytes()
    result = batch(art, tmp_path, [{"prompt": "."}])
    assert result.exit_code == 2 and "error[U052]" in result.stderr and out.read_bytes() == before
    for text in ("years of work", "years of work\n", '{"prompt": "x"}', '{"line": 1}\n'):
        out.write_text(text)
        assert "error[U052]" in batch(art, tmp_path, [{"prompt": "?"}]).stderr and out.read_text() == text
    same = CliRunner().invoke(main, [str(art), "--batch", str(out), "--out", str(out)])
    assert "error[U051]" in same.stderr
    assert "error[U051]" in CliRunner().invoke(main, [str(art), "--batch", str(out), "--out", str(tmp_path)]).stderr
    assert "error[U035]" in CliRunner().invoke(main, [str(art), "--batch", "no-such", "--out", str(tmp_path / "x")]).stderr


@pytest.mark.parametrize(("size", "learned"), [("1", False), ("3", False), ("3", True)])
def test_ctrl_c_keeps_whole_lines_alone(tmp_path: Path, size: str, learned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "art"
    write_speaker(folder, learned=learned)
    step, calls = Session.step, [0]

    def stopped(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == 5:
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    monkeypatch.setattr(Session, "step", stopped)
    lines: Lines = [{"prompt": "!"}, {"prompt": "a"}, {"prompt": "?", "max_new_tokens": 2}, {"prompt": "!"}]
    assert batch(folder, tmp_path, lines, "--batch-size", size).exit_code == 130
    assert calls[0] == 5 and 0 < len(answers(tmp_path)) < 4
    assert all(a["finish_reason"] != "interrupted" for a in answers(tmp_path))
    monkeypatch.undo()
    batch(folder, tmp_path, lines, "--batch-size", size, "--max-new-tokens", "4")
    assert sorted(a["line"] for a in answers(tmp_path)) == [1, 2, 3, 4]


def test_lines_from_stdin_to_stdout(art: Path) -> None:
    result = CliRunner().invoke(main, [str(art), "--batch", "-", "--top-logprobs", "1"], 
                                input='\ufeff{"prompt": "?"}\n\n{"prompt": "."}')
    made = [json.loads(line) for line in result.stdout.splitlines()]
    assert [a["text"] for a in made] == ["hello world!", "😀ok"] and [a["line"] for a in made] == [1, 3]
    assert [step["top"][0][0] for step in made[0]["logprobs"]] == made[0]["tokens"]
