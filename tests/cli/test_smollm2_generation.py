"""Generation with a real model: a conversation from its cache, seeds, stop strings, a batch taken up again.

The answers are ones that the model is sure of: its packed weights round by a few tenths of a logit, in one pass and in several.
"""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from uaii.cli.run import main
from uaii.compiler import Artifact
from uaii.model import Model, load

SYSTEM = "You are a helpful AI assistant."
QUESTIONS = ["What is the capital of France?", "And of Italy?", "And of Japan?"]
ANSWERS = ["The capital of France is Paris.", "The capital of Italy is Rome.", "The capital of Japan is Tokyo."]


@pytest.fixture(scope="module")
def model(smollm2_artifact: Artifact) -> Model:
    return load(smollm2_artifact.folder)


def run(folder: Path, *options: str, said: str | None = None) -> Any:
    result = CliRunner().invoke(main, [str(folder), *options], input=said)
    assert result.exit_code == 0, result.stderr
    return result


def test_three_turns_reuse_the_cache_and_equal_the_conversation_run_at_once(model: Model, smollm2_artifact: Artifact) -> None:
    result = run(smollm2_artifact.folder, "--chat", "--system", SYSTEM, "--stats", said="\n".join([*QUESTIONS, "/stats", ""]))
    assert result.stdout.splitlines() == ANSWERS
    turns: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    prefilled, kept = [], 0
    for question, answer in zip(QUESTIONS, ANSWERS, strict=True):
        turns.append({"role": "user", "content": question})
        ids = model.chat_ids(turns)
        whole = model.start(ids).run()
        assert whole.text == answer and whole.stats.reused_tokens == 0
        prefilled.append(f"prompt {len(ids)} tokens ({kept} from the cache)")
        kept = len(ids) + len(whole.tokens) - 1  # the end token was chosen and never run
        turns.append({"role": "assistant", "content": answer})
    assert [line.split(",")[0] for line in result.stderr.splitlines() if line.startswith("prompt ")][:3] == prefilled


def test_a_seed_gives_the_same_tokens_again(smollm2_artifact: Artifact) -> None:
    def tokens(seed: int) -> list[int]:
        result = run(smollm2_artifact.folder, "--prompt", "Once upon a time", "--temperature", "1.2", "--seed", str(seed),
                     "--max-new-tokens", "24", "--format", "json")
        made: list[int] = json.loads(result.stdout)["tokens"]
        return made

    assert tokens(7) == tokens(7) and len({tuple(tokens(seed)) for seed in range(4)}) > 1


@pytest.mark.parametrize(("stop", "text"), [
    ("tal of Fr", "The capi"), ("e is P", "The capital of Franc"), (" Paris", "The capital of France is"), ("T", ""),
    ("Paris.", "The capital of France is "), ("France is Rome", ANSWERS[0])])
def test_stop_strings_cut_exactly_across_tokens(model: Model, smollm2_artifact: Artifact, stop: str, text: str) -> None:
    result = run(smollm2_artifact.folder, "--chat", "--system", SYSTEM, "--prompt", QUESTIONS[0], "--stop", stop, "--format",
                 "json")
    made = json.loads(result.stdout)
    assert made["text"] == text and (made["finish_reason"] == "stop_string") is (text != ANSWERS[0])


def test_a_batch_is_taken_up_where_it_was_cut(smollm2_artifact: Artifact, tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"prompt": f"The number {n} is"}) + "\n" for n in range(20)))
    options = ["--batch", str(source), "--out", str(out), "--max-new-tokens", "4"]
    run(smollm2_artifact.folder, *options)
    whole = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(whole) == 20
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:9]) + lines[9][:20])
    assert "11 done, 0 failed, 9 skipped" in run(smollm2_artifact.folder, *options).stderr
    again = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(a["line"], a["tokens"]) for a in again] == [(a["line"], a["tokens"]) for a in whole]
