"""`uaii-run`: what goes to stdout and stderr, reasons to stop, exit codes, and Ctrl-C."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from speaking_artifact import BANG, END, HELLO, WORLD, write_speaker
from tiny_artifact import Tiny

import uaii
from uaii.backends.ort.session import Session
from uaii.cli.run import main

ROOT = Path(uaii.__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tiny]:
    folder = tmp_path_factory.mktemp("speaker")
    return folder, write_speaker(folder)


@pytest.fixture(scope="module")
def art(speaker: tuple[Path, Tiny]) -> Path:
    return speaker[0]


def run(folder: Path, *options: str, stdin: Any = None) -> Result:
    return CliRunner().invoke(main, [str(folder), *options], input=stdin)


def said(folder: Path, *options: str, stdin: Any = None) -> dict[str, Any]:
    result = run(folder, *options, "--format", "json", stdin=stdin)
    assert result.exit_code == 0, result.stderr
    made: dict[str, Any] = json.loads(result.stdout)
    return made


def test_json_is_one_object_of_a_known_shape(art: Path) -> None:
    made = said(art, "--prompt", "?")
    assert list(made)[:4] == ["prompt_tokens", "tokens", "text", "finish_reason"] and "logprobs" not in made
    assert (made["prompt_tokens"], made["tokens"]) == ([5 + ord("?")], [HELLO, WORLD, BANG, END])
    assert (made["text"], made["finish_reason"]) == ("hello world!", "stop")
    stats = made["stats"]
    assert (stats["prompt_tokens"], stats["generated_tokens"], stats["reused_tokens"]) == (1, 4, 0)


def test_text_goes_to_stdout_alone_and_talk_to_stderr(art: Path) -> None:
    result = run(art, "--prompt", "?", "--stats")
    assert result.stdout == "hello world!\n" and "generated 4" in result.stderr
    assert run(art, "--prompt", ".").stdout == "😀ok\n"


def test_where_prompts_come_from(art: Path, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_bytes("é?".encode())
    wanted = [5 + 0xC3, 5 + 0xA9, 5 + ord("?")]
    for options, stdin in (((), "é?".encode()), (("--prompt-file", "-"), "é?".encode()),
                           (("--prompt-file", str(tmp_path / "prompt.txt")), None), (("--prompt", "é?"), None),
                           (("--token-ids", "200, 174,68"), None)):
        assert said(art, *options, stdin=stdin)["prompt_tokens"] == wanted
    assert said(art, stdin=b"\xff?")["text"] == "hello world!"


def test_control_tokens_in_a_raw_prompt_are_parsed(art: Path) -> None:
    made = said(art, "--prompt", "<|assistant|>")
    assert made["prompt_tokens"] == [4] and made["text"] == "hello world!"


@pytest.mark.parametrize(("stops", "text", "which"), [
    (["lo wo"], "hel", "lo wo"), (["world!", "or"], "hello w", "or"), (["hello"], "", "hello"), (["!x"], "hello world!", None)])
def test_stop_strings_across_tokens(art: Path, stops: list[str], text: str, which: str | None) -> None:
    options = [part for stop in stops for part in ("--stop", stop)]
    made = said(art, "--prompt", "?", *options)
    assert (made["text"], made["stop_string"], made["finish_reason"]) == (text, which, "stop_string" if which else "stop")
    assert run(art, "--prompt", "?", *options).stdout == text + "\n"


def test_every_stop_id_ends_and_none_when_ignored(tmp_path: Path) -> None:
    write_speaker(tmp_path, stop_ids=[END, WORLD])
    assert said(tmp_path, "--prompt", "?")["tokens"] == [HELLO, WORLD]
    assert said(tmp_path, "--token-ids", str(WORLD))["tokens"] == [BANG, END]
    made = said(tmp_path, "--prompt", "?", "--ignore-eos", "--max-new-tokens", "6")
    assert (len(made["tokens"]), made["finish_reason"]) == (6, "length")


def test_an_artifact_without_stop_ids_says_so(tmp_path: Path) -> None:
    write_speaker(tmp_path, stop_ids=[])
    short = ("--prompt", "?", "--max-new-tokens", "3")
    assert "note: this artifact names no stop token: only the length ends" in run(tmp_path, *short).stderr
    assert "length or --stop ends" in run(tmp_path, *short, "--stop", "x").stderr
    for quiet in ("--quiet", "--ignore-eos"):
        assert run(tmp_path, *short, quiet).stderr == ""


def test_the_context_s_end_is_said(tmp_path: Path) -> None:
    write_speaker(tmp_path, context=12)
    result = run(tmp_path, "--prompt", "a")
    assert result.stdout == "ba" * 5 + "b\n" and "the context of 12 tokens is full" in result.stderr
    assert run(tmp_path, "--prompt", "a", "--quiet").stderr == ""
    assert said(tmp_path, "--prompt", "a")["finish_reason"] == "context"
    assert "error[S612]" in run(tmp_path, "--prompt", "a" * 13).stderr


def test_logits_of_every_position_in_exactly_this_file(speaker: tuple[Path, Tiny], tmp_path: Path) -> None:
    (folder, tiny), file = speaker, tmp_path / "logits.bin"
    result = run(folder, "--prompt", "hello?", "--logits", str(file))
    made = np.load(file)
    assert result.exit_code == 0 and result.stdout == "" and [p.name for p in tmp_path.iterdir()] == ["logits.bin"]
    assert made.dtype == np.float32 and made.shape == (2, tiny.vocab)
    np.testing.assert_allclose(made, tiny.logits([HELLO, 5 + ord("?")]), atol=1e-4)
    assert said(folder, "--prompt", "?", "--logits", str(file))["shape"] == [1, tiny.vocab]
    assert "error[U038]" in run(folder, "--prompt", "?", "--logits", str(tmp_path / "no" / "x.npy")).stderr


def test_likeliest_tokens_of_every_step(art: Path) -> None:
    made = said(art, "--prompt", "?", "--top-logprobs", "3")
    assert [step["id"] for step in made["logprobs"]] == made["tokens"]
    for step in made["logprobs"]:
        assert len(step["top"]) == 3 and step["top"][0] == [step["id"], step["logprob"]] and step["logprob"] < 0
    for options in (("--logits", "x.npy"), ()):
        assert "--top-logprobs goes with --format json" in run(art, "--prompt", "?", "--top-logprobs", "3", *options).stderr


def test_sampling_with_a_seed(art: Path) -> None:
    options = ("--prompt", "?", "--temperature", "9", "--seed", "5", "--max-new-tokens", "8", "--ignore-eos")
    made = [said(art, *options) for _ in range(2)]
    assert made[0]["tokens"] == made[1]["tokens"] != said(art, "--prompt", "?")["tokens"] and made[0]["seed"] == 5


@pytest.mark.parametrize(("options", "code"), [
    (("--prompt", "a", "--token-ids", "1"), "U030"), (("--prompt", "a", "--batch", "x.jsonl"), "U030"),
    (("--prompt", "a", "--system", "s"), "U031"), (("--prompt", "a", "--greedy", "--top-k", "3"), "U032"),
    (("--token-ids", "1,x"), "U033"), (("--prompt-file", "no-such-file"), "U035"), (("--prompt", "a", "--out", "x"), "U037"),
    (("--prompt", "a", "--parse-special"), "U037"), (("--prompt", "a", "--tools", "t.json"), "U037"),
    (("--prompt", "a", "--batch-size", "3"), "U037"), (("--batch", "x.jsonl", "--logits", "x"), "U037"),
    (("--token-ids", "999"), "S611"), (("--token-ids", ""), "S613"), (("--prompt", "a", "--top-p", "7"), "S620")])
def test_options_that_make_no_sense(art: Path, options: tuple[str, ...], code: str) -> None:
    result = run(art, *options)
    assert result.exit_code == 2 and f"error[{code}]" in result.stderr and result.stdout == ""
    assert json.loads(run(art, *options, "--format", "json").stdout)["error"]["code"] == code


def test_ctrl_c_keeps_the_text_so_far_and_ends_with_130(tmp_path: Path) -> None:
    """In a process of its own: text streams before the end, and SIGINT ends it in order."""
    write_speaker(tmp_path, context=60_000)
    call = [sys.executable, "-c", "from uaii.cli.run import main; main()", str(tmp_path), "--prompt", "a",
            "--max-new-tokens", "59000"]
    process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
                               env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert process.stdout is not None
    begun = process.stdout.read(4)
    process.send_signal(signal.SIGINT)
    rest, talk = process.communicate(timeout=60)
    text = (begun + rest).decode()
    assert process.returncode == 130 and talk == b"interrupted\n"
    assert text == ("ba" * len(text))[:len(text) - 1] + "\n" and 4 < len(text) < 59000


def test_ctrl_c_inside_a_step_ends_json_in_order_too(art: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, calls = Session.step, [0]

    def stopped(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    monkeypatch.setattr(Session, "step", stopped)
    result = run(art, "--prompt", "?", "--format", "json")
    made = json.loads(result.stdout)
    assert result.exit_code == 130 and (made["text"], made["finish_reason"]) == ("hello world", "interrupted")
