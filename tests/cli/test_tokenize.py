"""`uaii tokenize` on every kind of source: ids, pieces, and what is put in front."""
from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ranked_cases import OUT
from tiny_tokenizers import packed, t0, write_folder

from uaii.cli.tokenize import main

TEXT = "hello world </s>"


def source(kind: str, folder: Path) -> Path:
    ranked = json.loads(lzma.decompress(OUT.read_bytes())) if kind in ("tekken", "tiktoken") else {}
    match kind:
        case "tokenizer.json":
            return write_folder(folder, tokenizer_json=t0(bos=True))
        case "vocab and merges":
            model = t0()["model"]
            return write_folder(folder, vocab_json=model["vocab"], merges_txt="\n".join(map(" ".join, model["merges"])))
        case "sentencepiece":
            return write_folder(folder, tokenizer_model=packed("mistral-7b-v0.1.tokenizer.model"),
                                tokenizer_config_json={"add_bos_token": True})
        case "gguf":
            (folder / "vocabulary.gguf").write_bytes(packed("gpt-2.gguf"))
            return folder / "vocabulary.gguf"
        case "tekken":
            vocab = [{"rank": i, "token_bytes": token} for i, token in enumerate(ranked["tekken"]["vocab"])]
            return write_folder(folder, tekken_json={"vocab": vocab, "config": ranked["tekken"]["config"]})
    return write_folder(folder, qwen_tiktoken="\n".join(ranked["qwen"]))


def said(path: Path, *options: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, [str(path), TEXT, "--format", "json", *options])
    assert result.exit_code == 0, result.stderr
    made: dict[str, Any] = json.loads(result.stdout)
    return made


@pytest.mark.parametrize(("kind", "bos", "ids"), [
    ("tokenizer.json", [1], [264, 269, 37, 65, 52, 120, 67]), ("vocab and merges", [], [264, 269, 37, 65, 52, 120, 67]),
    ("sentencepiece", [1], [6312, 28709, 1526, 28705, 2]), ("gguf", [], [31373, 995, 7359, 82, 29]),
    ("tekken", [1], None), ("tiktoken", [], None)])
def test_every_source(kind: str, bos: list[int], ids: list[int] | None, tmp_path: Path) -> None:
    path = source(kind, tmp_path)
    made, bare = said(path), said(path, "--no-special")
    assert made["ids"] == bos + bare["ids"] and len(made["pieces"]) == len(made["ids"])
    assert ids is None or bare["ids"] == ids
    assert "".join(bare["pieces"]).strip() == TEXT


def test_nothing_to_read_says_what_was_looked_for(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, [str(tmp_path), TEXT])
    assert result.exit_code == 4
    assert f"no HF tokenizer found in {tmp_path} (need tokenizer.json, vocab.json+merges.txt, or tokenizer.model)" in \
        result.stderr.replace("\n", " ")
