"""tokenizer.model against SentencePiece itself."""
from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tiny_tokenizers import packed, write_folder
from tokenizer_texts import FRAGMENTS, texts

from uaii.frontend.tokenizer.folder import from_folder
from uaii.frontend.tokenizer.text import Tokenizer
from uaii.ir.diag import Diagnostic, Malformed, Unsupported

CORPUS = " ".join(FRAGMENTS) + " the quick brown fox jumps over the lazy dog and runs through the wood for twenty days. " * 3


def trained(kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    lines = [CORPUS[i:] for i in range(0, 60, 3)]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=out, model_type=kind, vocab_size=460,
                                             hard_vocab_limit=False, minloglevel=5, byte_fallback=True, **options)
    return out.getvalue()


def samples() -> list[str]:
    return [text.replace("<s>", "").replace("</s>", "") for text in texts("sentencepiece", 200)]


def refusal(folder: Path) -> Diagnostic:
    with pytest.raises(Diagnostic) as err:
        from_folder(folder, {}, None)
    return err.value


def test_a_real_model_gives_the_ids_of_sentencepiece(tmp_path: Path) -> None:
    raw = packed("mistral-7b-v0.1.tokenizer.model")
    judge = sentencepiece.SentencePieceProcessor(model_proto=raw)
    made = Tokenizer(from_folder(write_folder(tmp_path, tokenizer_model=raw), {}, None))
    assert [made.encode(text, add_special=False) for text in samples()] == [judge.encode(text) for text in samples()]
    assert made.encode("hello</s>world") == [6312, 28709, 2, 1526]
    ids = judge.encode("Grüße 😀 x")
    assert made.decode(ids) == judge.decode(ids)


@pytest.mark.parametrize(("config", "ids"), [
    ({"legacy": False}, [6312, 28709, 2, 9471]), ({"tokenizer_class": "LlamaTokenizer"}, [6312, 28709, 2, 9471]),
    ({"tokenizer_class": "LlamaTokenizer", "legacy": True}, [6312, 28709, 2, 1526]),
    ({"add_bos_token": True}, [1, 6312, 28709, 2, 1526]),
    ({"add_prefix_space": False}, [21558, 2, 9471])])
def test_flags_beside_the_model(tmp_path: Path, config: dict[str, Any], ids: list[int]) -> None:
    folder = write_folder(tmp_path, tokenizer_model=packed("mistral-7b-v0.1.tokenizer.model"), tokenizer_config_json=config)
    files = from_folder(folder, {}, None)
    assert Tokenizer(files).encode("hello</s>world") == ids and files.stop_ids == (2,)


@pytest.mark.parametrize(("kind", "options"), [
    ("bpe", {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}),
    ("unigram", {"normalization_rule_name": "nmt_nfkc"}),
    ("bpe", {"add_dummy_prefix": False, "normalization_rule_name": "identity", "user_defined_symbols": ["<tool>", "\n\n"]})])
def test_models_of_other_settings(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    raw = trained(kind, **options)
    judge = sentencepiece.SentencePieceProcessor(model_proto=raw)
    made = Tokenizer(from_folder(write_folder(tmp_path, tokenizer_model=raw), {}, None))
    text = "the quick <tool> fox\n\nruns\u00a0２ days"
    assert made.encode(text) == judge.encode(text) and made.decode(judge.encode("the fox")) == "the fox"


def test_a_conversion_that_differs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from uaii.frontend.tokenizer import sentencepiece_model
    real = sentencepiece_model.merges_by_score
    monkeypatch.setattr(sentencepiece_model, "merges_by_score", lambda *a, **k: real(*a, **k)[::-1])
    err = refusal(write_folder(tmp_path, tokenizer_model=packed("mistral-7b-v0.1.tokenizer.model")))
    assert isinstance(err, Unsupported) and err.says.startswith("tokenizer.model found but its conversion gives other ids")


@pytest.mark.parametrize(("raw", "says"), [
    (b"IQ== 0\nIg== 1\n", "it holds the tiktoken ranks of an unnamed"), (b"\xff\xfe nonsense", "it is not a SentencePiece model"),
    (b"", "it is neither a BPE nor a Unigram model")])
def test_other_files_of_that_name_are_refused(tmp_path: Path, raw: bytes, says: str) -> None:
    err = refusal(write_folder(tmp_path, tokenizer_model=raw))
    assert isinstance(err, Unsupported) and err.code == "K509" and err.says.startswith(f"tokenizer.model found but {says}")


def test_word_models_are_refused(tmp_path: Path) -> None:
    assert "neither a BPE nor a Unigram" in refusal(write_folder(tmp_path, tokenizer_model=trained_words())).says


def trained_words() -> bytes:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["a b c d"] * 5), model_writer=out, model_type="word",
                                             vocab_size=7, minloglevel=5)
    return out.getvalue()


def test_a_pointer_in_place_of_the_model(tmp_path: Path) -> None:
    err = refusal(write_folder(tmp_path, tokenizer_model=b"version https://git-lfs.github.com/spec/v1\noid sha256:0"))
    assert isinstance(err, Malformed) and err.code == "K510"
