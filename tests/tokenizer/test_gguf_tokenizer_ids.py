"""Ids from GGUF vocabularies against llama.cpp and against the publishers' own tokenizers.

Set UAII_VOCAB_DIR to a folder of vocabulary files (NAME.gguf with NAME.gguf.inp and NAME.gguf.out, as llama.cpp ships
them) and every pair in it is tried too; without it there is the committed one.
"""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import DATA, mistral_gguf, packed, t0_gguf, t1_gguf
from tokenizer_texts import pair_vocabulary

from uaii.frontend.checkpoint import TokenizerFiles
from uaii.frontend.gguf import Gguf
from uaii.frontend.tokenizer.gguf import from_gguf
from uaii.frontend.tokenizer.gguf_bpe import pre_tokenizers
from uaii.frontend.tokenizer.text import Tokenizer

GOLDEN = json.loads(packed("llamacpp.json"))
OUTSIDE = sorted(p for p in Path(os.environ["UAII_VOCAB_DIR"]).glob("*.gguf") if Path(f"{p}.inp").exists()) \
    if "UAII_VOCAB_DIR" in os.environ else []


def tokenizer(metadata: Any) -> Tokenizer:
    return Tokenizer(from_gguf(metadata, "test.gguf"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vocab") / "gpt-2.gguf"
    path.write_bytes(packed("gpt-2.gguf"))
    for end in ("inp", "out"):
        Path(f"{path}.{end}").write_bytes((DATA / f"gpt-2.gguf.{end}").read_bytes())
    return path


@pytest.mark.parametrize("path", [None, *OUTSIDE], ids=lambda p: p.stem if p else "gpt-2")
def test_vocabulary_gives_the_ids_of_its_publisher(path: Path | None, gpt2: Path) -> None:
    path = path or gpt2
    made = tokenizer(Gguf(path, inspect=True).metadata)
    texts = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    wanted = [[int(i) for i in line.split()] for line in Path(f"{path}.out").read_text().splitlines()]
    assert len(texts) - 1 <= len(wanted) and len(wanted) > 40
    wrong = {text: ids for text, ids in zip(texts, wanted, strict=False) if made.encode(text, add_special=False) != ids}
    assert not wrong


@pytest.mark.parametrize("split", GOLDEN["splits"])
def test_pre_tokenizer_cuts_where_llamacpp_cuts(split: str) -> None:
    tokens, merges = pair_vocabulary(GOLDEN["texts"])
    name = next(n for n, entry in pre_tokenizers()["names"].items() if entry["split"] == split)
    made = tokenizer(t0_gguf(pre=name, tokens=tokens, merges=merges, token_type=[1] * len(tokens)))
    wrong = [(text, ids) for text, ids in zip(GOLDEN["texts"], GOLDEN["splits"][split], strict=True)
             if made.encode(text, add_special=False) != ids]
    assert not wrong[:2]


def test_every_byte_level_split_has_a_golden() -> None:
    names = pre_tokenizers()["names"].values()
    assert {e["split"] for e in names if e.get("byte_level", True)} == set(GOLDEN["splits"])
    assert {e["split"] for e in names} == set(pre_tokenizers()["splits"])


@pytest.mark.parametrize("flag", ["true", "false"])
def test_sentencepiece_scores_give_the_ids_of_llamacpp(flag: str) -> None:
    made = tokenizer(mistral_gguf() | {"tokenizer.ggml.add_space_prefix": flag == "true"})
    assert [made.encode(text, add_special=False) for text in GOLDEN["spm_texts"]] == GOLDEN["spm"][flag]


@pytest.mark.parametrize("pre", GOLDEN["tiny"]["ids"])
def test_tiny_byte_level_file_gives_the_ids_of_llamacpp(pre: str) -> None:
    made = tokenizer(t0_gguf(pre=pre))
    assert [made.encode(text, add_special=False) for text in GOLDEN["tiny"]["texts"]] == GOLDEN["tiny"]["ids"][pre]


@pytest.mark.parametrize("flag", GOLDEN["tiny_spm"]["ids"])
def test_tiny_sentencepiece_file_gives_the_ids_of_llamacpp(flag: str) -> None:
    made = tokenizer(t1_gguf(add_space_prefix={"true": True, "false": False}.get(flag)))
    assert [made.encode(text, add_special=False) for text in GOLDEN["tiny_spm"]["texts"]] == GOLDEN["tiny_spm"]["ids"][flag]


def test_raw_text_bpe_splits_at_newlines_and_falls_back_to_bytes() -> None:
    tokens = ["<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "\n", "▁a", "\n\n", "a\n"]
    types = [3, 3] + [6] * 256 + [1] * 7
    files: TokenizerFiles = from_gguf({f"tokenizer.ggml.{k}": v for k, v in {
        "model": "gemma4", "tokens": tokens, "token_type": types, "merges": ["▁ a", "\n \n", "a \n"], "bos_token_id": 0,
        "eos_token_id": 1, "add_bos_token": False}.items()}, "g.gguf")
    made = Tokenizer(files)
    ids = {token: i for i, token in enumerate(tokens)}
    # "a\n" is a merge, but a newline never shares a piece with text
    assert made.encode("b a\n\né") == [0, ids["b"], ids["▁a"], ids["\n\n"], ids["<0xC3>"], ids["<0xA9>"]]
    assert any("Gemma 4, against the file" in note for note in files.notes)
    assert made.decode([ids["b"], ids["▁a"], ids["<0xC3>"], ids["<0xA9>"]]) == "b aé"
