"""tekken.json and tiktoken's rank files: the references' ids, the right rule for a file, refusal of what is not known."""
from __future__ import annotations

import base64
import hashlib
import json
import lzma
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from ranked_cases import KIMI_SPECIAL, OUT, PATTERNS, TEXTS
from tiny_tokenizers import packed, write_folder

from uaii.frontend.tokenizer import ranks, tiktoken
from uaii.frontend.tokenizer.folder import from_folder
from uaii.frontend.tokenizer.text import Tokenizer
from uaii.ir.diag import Diagnostic, Malformed, Unsupported

DATA = json.loads(lzma.decompress(OUT.read_bytes()))
LINES = "\n".join(DATA["qwen"]) + "\n"
COUNT = len(DATA["qwen"])
KIMI = {"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]", "added_tokens_decoder": {
    str(COUNT + i): {"content": text, "special": True} for i, text in enumerate(KIMI_SPECIAL) if "reserved" not in text}}


def tekken(**config: Any) -> dict[str, Any]:
    vocab = [{"rank": i, "token_bytes": token, "token_str": None} for i, token in enumerate(DATA["tekken"]["vocab"])]
    return {"vocab": vocab, "config": DATA["tekken"]["config"] | config}


def kind(folder: Path, name: str) -> Path:
    match name:
        case "tekken":
            return write_folder(folder, tekken_json=tekken())
        case "qwen":
            return write_folder(folder, qwen_tiktoken=LINES)
        case "kimi":
            return write_folder(folder, tiktoken_model=LINES, tokenizer_config_json=KIMI)
    return write_folder(folder, tokenizer_model=LINES)


@pytest.fixture
def llama3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiktoken, "LLAMA3_FILE", hashlib.sha256(LINES.encode()).hexdigest())


def refusal(folder: Path, config: dict[str, Any] | None = None) -> Diagnostic:
    with pytest.raises(Diagnostic) as err:
        from_folder(folder, config or {}, None)
    return err.value


@pytest.mark.parametrize("name", ["tekken", "qwen", "kimi", "llama3"])
def test_ids_of_the_references(tmp_path: Path, name: str, request: pytest.FixtureRequest) -> None:
    if name == "llama3":
        request.getfixturevalue(name)
    made = Tokenizer(from_folder(kind(tmp_path, name), {}, None))
    reads = name in ("qwen", "kimi")  # the other two never read control tokens in a text
    ids = [made.encode(text, add_special=False, parse_special=reads) for text in TEXTS]
    assert len(TEXTS) > 200 and ids == DATA["ids"][name]
    plain = [unicodedata.normalize("NFC", text) if name == "qwen" else text for text in TEXTS]
    assert [made.decode(made.encode(text, add_special=False, parse_special=False)) for text in TEXTS] == plain


def test_the_patterns_are_the_authors_own() -> None:
    assert {name: getattr(ranks, name.upper()) for name in PATTERNS} == PATTERNS
    assert DATA["tekken"]["config"]["pattern"] == ranks.TEKKEN


def joined(piece: bytes, ranked: dict[bytes, int]) -> list[int]:
    """tiktoken's rule: a whole piece that has a rank; else the neighbours of the lowest joint rank, the leftmost of equals."""
    tokens = [piece] if piece in ranked else [piece[i:i + 1] for i in range(len(piece))]
    while costs := [(ranked[a + b], i) for i, (a, b) in enumerate(zip(tokens, tokens[1:], strict=False)) if a + b in ranked]:
        i = min(costs)[1]
        tokens[i:i + 2] = [tokens[i] + tokens[i + 1]]
    return [ranked[token] for token in tokens]


def test_ranks_in_any_order_and_out_of_reach() -> None:
    """Vocabularies that no training made: tokens ranked before their parts, tokens that cannot be joined."""
    rng = random.Random(3)
    for _ in range(60):
        tokens = sorted({bytes(rng.choice(b"abc") for _ in range(rng.randint(2, 5))) for _ in range(40)})
        rng.shuffle(tokens)
        ranked = {token: i for i, token in enumerate([bytes([b]) for b in range(256)] + tokens)}
        from tokenizers import Tokenizer as Library
        made = Library.from_str(ranks.document(ranks.model(ranked), "[^ ]+", added=[], post=None))
        for _ in range(60):
            piece = bytes(rng.choice(b"abc") for _ in range(rng.randint(1, 14)))
            assert made.encode(piece.decode()).ids == joined(piece, ranked), (piece, tokens)


def test_tekken_control_tokens_and_bos(tmp_path: Path) -> None:
    files = from_folder(kind(tmp_path, "tekken"), {}, None)
    made = Tokenizer(files)
    assert (files.bos_id, files.eos_id, files.stop_ids, files.pad_id) == (1, 2, (2,), 11) and files.vocab_size == COUNT + 1000
    assert made.encode("[INST]<SPECIAL_999>") == [1, 3, 999] and made.decode([1, 3, 999, 1000 + 33]) == "!"
    named = [{"rank": i, "token_str": text, "is_control": True} for i, text in enumerate(["<unk>", "<s>", "</s>", "[NEW]"])]
    write_folder(tmp_path, tekken_json=tekken(version="v13") | {"special_tokens": named},
                 tokenizer_config_json={"add_bos_token": False})
    assert Tokenizer(from_folder(tmp_path, {}, None)).encode("[NEW]") == [3]


@pytest.mark.usefixtures("llama3")
def test_llama3_names_follow_the_configuration(tmp_path: Path) -> None:
    folder = kind(tmp_path, "llama3")
    old = Tokenizer(from_folder(folder, {}, None))
    new = Tokenizer(from_folder(folder, {"rope_scaling": {"rope_type": "llama3"}}, None))
    assert old.encode("<|eot_id|><|reserved_special_token_4|>") == [COUNT, COUNT + 9, COUNT + 8]
    assert new.encode("<|eom_id|><|reserved_special_token_2|>") == [COUNT, COUNT + 8, COUNT + 5]
    assert new.vocab_size == COUNT + 256 and new.eos_token == "<|end_of_text|>"


def test_kimi_reserved_tokens_and_its_code(tmp_path: Path) -> None:
    folder = kind(tmp_path, "kimi")
    made = Tokenizer(from_folder(folder, {}, None))
    assert made.encode(f"<|reserved_token_{COUNT + 5}|>[EOS]") == [COUNT + 5, COUNT + 1] and made.vocab_size == COUNT + 256
    code = "class TikTokenTokenizer:\n    pat_str = " + "".join(f'r"""{piece}"""' for piece in tiktoken.KIMI_CODE)
    from_folder(write_folder(folder, tokenization_kimi_py=code), {}, None)
    err = refusal(write_folder(folder, tokenization_kimi_py=code.replace("{1,3}", "{1,2}")))
    assert isinstance(err, Unsupported) and err.code == "K514" and err.says.startswith("tiktoken.model found but tokenization")
    write_folder(folder, tokenization_kimi_py=code, tokenizer_config_json=KIMI | {
        "added_tokens_decoder": {str(COUNT + 256): {"content": "<far>"}}})
    assert "outside 6000..6255" in refusal(folder).says


def test_a_tokenizer_model_is_told_by_its_content(tmp_path: Path) -> None:
    assert "SentencePiece" in from_folder(write_folder(tmp_path, tokenizer_model=packed("mistral-7b-v0.1.tokenizer.model")),
                                          {}, None).notes[0]
    write_folder(tmp_path, tokenizer_model=LINES, tokenizer_config_json={"tokenizer_class": "ChatGLM4Tokenizer"})
    err = refusal(tmp_path)
    assert isinstance(err, Unsupported) and err.code == "K509"
    assert err.says.startswith("tokenizer.model found but it holds the tiktoken ranks of ChatGLM4Tokenizer")
    assert "an unnamed tokenizer class" in refusal(write_folder(tmp_path / "o200k", o200k_base_tiktoken=LINES)).says


@pytest.mark.parametrize(("files", "says"), [
    ({"qwen_tiktoken": LINES + "IQ== x\n"}, "qwen.tiktoken found but its line 6001"),
    ({"qwen_tiktoken": "\n".join(DATA["qwen"][1:])}, "not numbered from 0"),
    ({"qwen_tiktoken": "version https://git-lfs.github.com/spec/v1\n"}, "Git LFS pointer"),
    ({"tekken_json": {"vocab": []}}, "holds no vocabulary"), ({"tekken_json": tekken(default_vocab_size=99999)}, "99999"),
    ({"tekken_json": tekken(version="v13")}, "lists no special_tokens"),
    ({"tekken_json": tekken() | {"special_tokens": [{"rank": 1, "token_str": "<s>"}]}}, "not numbered from 0"),
    ({"tekken_json": tekken() | {"vocab": [{"rank": 0, "token_bytes": "AQ=="}] * 6000}}, "token 0 of its vocabulary")])
def test_files_that_are_not_as_they_should_be(tmp_path: Path, files: dict[str, Any], says: str) -> None:
    err = refusal(write_folder(tmp_path, **files))
    assert isinstance(err, Malformed) and says in err.says


def test_what_is_not_exact_is_refused(tmp_path: Path) -> None:
    err = refusal(write_folder(tmp_path / "a", tekken_json=tekken(pattern=".+")))
    assert isinstance(err, Unsupported) and err.code == "K514" and err.says.startswith("tekken.json found but its pattern")
    token = base64.b64decode(DATA["tekken"]["vocab"][5000]).decode("latin-1")
    text = ranks.symbols(token.encode("latin-1"))
    twice = [{"rank": 0, "token_str": text}]
    assert "both a control token and an ordinary one" in refusal(
        write_folder(tmp_path / "b", tekken_json=tekken() | {"special_tokens": twice})).says
