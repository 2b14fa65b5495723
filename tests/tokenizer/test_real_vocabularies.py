"""Vocabularies of real models over many texts: what is encoded is what is decoded, whole or as a stream, however long."""
from __future__ import annotations

import json
import lzma
import unicodedata
from pathlib import Path

import pytest
from ranked_cases import KIMI_SPECIAL, OUT
from tiny_tokenizers import mistral_gguf, packed, write_folder
from tokenizer_texts import everyday

from uaii.frontend.gguf import Gguf
from uaii.frontend.tokenizer.folder import from_folder
from uaii.frontend.tokenizer.gguf import from_gguf
from uaii.frontend.tokenizer.text import Tokenizer, clean

NAMES = ["gpt2", "mistral", "mistral gguf", "tekken", "qwen", "kimi"]
LONG = 100_000


@pytest.fixture(scope="module", params=NAMES)
def tok(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return made(request.param, tmp_path_factory.mktemp("vocabulary"))


def made(name: str, folder: Path) -> Tokenizer:
    ranked = json.loads(lzma.decompress(OUT.read_bytes())) if name in ("tekken", "qwen", "kimi") else {}
    match name:
        case "gpt2":
            (folder / "gpt-2.gguf").write_bytes(packed("gpt-2.gguf"))
            return Tokenizer(from_gguf(Gguf(folder / "gpt-2.gguf", inspect=True).metadata, name))
        case "mistral gguf":
            return Tokenizer(from_gguf(mistral_gguf(), name))
        case "mistral":
            write_folder(folder, tokenizer_model=packed("mistral-7b-v0.1.tokenizer.model"))
        case "tekken":
            vocab = [{"rank": i, "token_bytes": token} for i, token in enumerate(ranked["tekken"]["vocab"])]
            write_folder(folder, tekken_json={"vocab": vocab, "config": ranked["tekken"]["config"]})
        case "qwen":
            write_folder(folder, qwen_tiktoken="\n".join(ranked["qwen"]))
        case "kimi":
            added = {str(len(ranked["qwen"]) + i): {"content": text, "special": True} for i, text in enumerate(KIMI_SPECIAL)}
            write_folder(folder, tiktoken_model="\n".join(ranked["qwen"]), tokenizer_config_json={
                "tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": added})
    return Tokenizer(from_folder(folder, {}, None))


def kept(tok: Tokenizer, text: str) -> str:
    """What encoding keeps of a text: SentencePiece writes spaces as ▁, Qwen composes characters."""
    text = clean(text)
    if '"▁"' in tok.files.tokenizer_json:
        return text.replace("▁", " ")
    return unicodedata.normalize("NFC", text) if '"normalizer":{"type":"NFC"}' in tok.files.tokenizer_json else text


def test_texts_come_back_whole_and_streamed(tok: Tokenizer) -> None:
    texts = everyday([text for id_, text in tok.added.items() if id_ in tok.special_ids][:12])
    assert len(texts) > 200
    for text in texts:
        ids, plain = tok.encode(text), tok.encode(text, add_special=False, parse_special=False)
        assert tok.decode(plain, skip_special=False) == kept(tok, text), ascii(text)
        for skip in (True, False):
            stream = tok.stream(skip_special=skip)
            assert "".join(map(stream.feed, ids)) + stream.finish() == tok.decode(ids, skip_special=skip), ascii(text)


@pytest.mark.parametrize("char", ["a", " ", "\n", "😀"], ids=ascii)
def test_a_hundred_thousand_of_one_character(tok: Tokenizer, char: str) -> None:
    """What takes the square of a text's length does not come back from this one."""
    text = char * LONG
    ids = tok.encode(text, add_special=False)
    assert tok.decode(ids) == text and tok.encode(text, add_special=False, parse_special=False) == ids
    stream = tok.stream()
    assert "".join(map(stream.feed, ids)) + stream.finish() == text
