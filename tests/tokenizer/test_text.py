"""Encoding and decoding at run time: special tokens, plain-text control tokens, streams."""
from __future__ import annotations

import random
from typing import Any

import pytest
from tiny_tokenizers import SPECIAL, T0_TOKENS, T1_TOKENS, t0, t0_gguf, t1, t1_gguf, tokenizer

from uaii.frontend.tokenizer.gguf import from_gguf
from uaii.frontend.tokenizer.text import Tokenizer
from uaii.ir.diag import Malformed


def streamed(made: Tokenizer, ids: list[int], **options: Any) -> list[str]:
    stream = made.stream(**options)
    return [*(stream.feed(i) for i in ids), stream.finish()]


def test_t0_and_what_is_added() -> None:
    assert tokenizer(t0()).encode("hello world") == [264, 269]
    assert tokenizer(t0(bos=True)).encode("hello") == [1, 264]
    assert tokenizer(t0(bos=True)).encode("<|bos|>hello") == [1, 1, 264]
    assert tokenizer(t0(bos=True)).encode("hello", add_special=False) == [264]
    assert tokenizer(t0()).vocab_size == 270


@pytest.mark.parametrize(("flags", "ids"), [({}, [3, 15, 264, 2, 15, 4, 15]), ({"rstrip": True}, [3, 264, 2, 4])])
def test_strip_flags(flags: dict[str, Any], ids: list[int]) -> None:
    assert tokenizer(t0(flags=flags)).encode("<|user|>\nhello<|end|>\n<|assistant|>\n") == ids


@pytest.mark.parametrize(("flags", "text", "ids"), [
    ({"lstrip": True}, "hello \u3000<|end|> hello", [264, 2, 37, 264]),
    ({"lstrip": True, "rstrip": True}, "hello\u00a0<|end|>\u00a0hello", [264, 2, 264]),
    ({"rstrip": True}, "<|end|>\u200bhello", [2, 231, 133, 144, 264]),  # no white space by Unicode
    ({"single_word": True}, "x<|end|>y <|end|> z", [125, 65, 129, 106, 115, 105, 129, 67, 126, 37, 2, 37, 127]),
    ({"normalized": True}, "<|END|>", [2]), ({}, "<|END|>", [65, 129, 106, 115, 105, 129, 67]),
], ids=str)
def test_flags_of_added_tokens(flags: dict[str, Any], text: str, ids: list[int]) -> None:
    spec = t0(flags=flags, normalizer={"type": "Lowercase"})
    assert tokenizer(spec).encode(text) == ids


@pytest.mark.parametrize(("scheme", "ids"), [
    ("legacy", [[277], [1, 277], [277, 2, 275], [277, 275]]), ("always", [[277], [1, 277], [277, 2, 275], [277, 275]]),
    ("first", [[277], [1, 270], [277, 2, 280], [277, 275]]), ("never", [[270], [1, 270], [270, 2, 280], [270, 275]])])
def test_prefix_space(scheme: str, ids: list[list[int]]) -> None:
    made = tokenizer(t1(scheme))
    assert [made.encode(text) for text in ("hello", "<s>hello", "hello</s>world", "hello world")] == ids


def test_control_tokens_as_plain_text() -> None:
    text = "hello<|end|>\n<|assistant|>\nyes"
    for made in (tokenizer(t0(bos=True)), Tokenizer(from_gguf(t0_gguf(pre="llama-bpe"), "t.gguf"))):
        parsed, plain = made.encode(text), made.encode(text, parse_special=False)
        assert {2, 4} <= set(parsed) and plain[0] == 1 and not set(range(5)) & set(plain[1:])
        assert made.decode(plain) == text
    assert tokenizer(t0()).encode("<|end|>", parse_special=False) == [65, 129, 106, 115, 105, 129, 67]


def test_merges_and_whole_pieces_make_no_control_token_from_plain_text() -> None:
    spec = t0()
    spec["added_tokens"].append(spec["added_tokens"][0] | {"id": 264, "content": "hello"})
    spec["model"]["ignore_merges"] = True
    assert tokenizer(spec).encode("hello") == [264]
    assert tokenizer(spec).encode("hello", parse_special=False) == [263, 116]


def test_user_defined_tokens_match_in_plain_text_too() -> None:
    metadata = t0_gguf(tokens=[*T0_TOKENS, "<tool>"], token_type=[3] * 5 + [1] * 265 + [4])
    made = Tokenizer(from_gguf(metadata, "t.gguf"))
    assert made.encode("<tool><|end|>", parse_special=False)[0] == 270
    assert not set(made.encode("<tool><|end|>", parse_special=False)) & {2}


def test_unigram_pieces_make_no_control_token_from_plain_text() -> None:
    spec = t1("legacy")
    spec["model"] = {"type": "Unigram", "unk_id": 0, "byte_fallback": False,
                     "vocab": [["<unk>", -9.0], ["<s>", 0.0], *([c, -2.0] for c in "▁<s>ab")]}
    spec["added_tokens"] = spec["added_tokens"][:2]
    made = tokenizer(spec)
    assert made.encode("<s>a")[0] == 1 and 1 not in made.encode("<s>a", parse_special=False)


def test_ids_that_are_no_token_say_nothing() -> None:
    made = tokenizer(t0())
    assert made.decode([264, 300, -1, 269]) == "hello world"
    assert made.pieces([300, 2, 264, 245]) == ["", "<|end|>", "hello", "\ufffd"]
    assert "".join(streamed(made, [264, 300, -1, 269])) == "hello world"


def test_broken_surrogates_are_replaced() -> None:
    made = tokenizer(t0())
    assert made.encode("\ud800") == made.encode("?") and made.encode("\udcff") == made.encode("\ufffd")


def test_stream_holds_back_unfinished_characters() -> None:
    made = tokenizer(t0())
    assert streamed(made, [245, 164, 157, 133]) == ["", "", "", "😀", ""]
    assert streamed(made, [245, 164, 157]) == ["", "", "", "\ufffd"]
    assert streamed(made, [245, 264]) == ["", "\ufffdhello", ""]
    assert streamed(made, [264, 2, 269]) == ["hello", "", " world", ""]
    assert streamed(made, [264, 2], skip_special=False) == ["hello", "<|end|>", ""]


def test_stream_of_sentencepiece_keeps_inner_spaces_and_byte_runs() -> None:
    made = tokenizer(t1("legacy"))
    assert streamed(made, [277, 275]) == ["hello", " world", ""]
    assert "".join(streamed(made, [259, 243, 162, 155, 131])) == "😀"
    assert "".join(streamed(made, [259, 243, 162, 155])) == "\ufffd" * 3
    assert streamed(made, [275], after=[277]) == [" world", ""]
    assert streamed(made, [275], after=[]) == ["world", ""]


@pytest.mark.parametrize("made", [tokenizer(t0()), tokenizer(t1("first")), tokenizer(t1("never")),
                                  Tokenizer(from_gguf(t1_gguf(add_space_prefix=False), "t.gguf"))])
def test_stream_equals_decode_of_the_whole(made: Tokenizer) -> None:
    rng = random.Random(7)
    for _ in range(400):
        ids = [rng.randrange(made.vocab_size + 3) for _ in range(rng.randint(1, 14))]
        for skip in (True, False):
            assert "".join(streamed(made, ids, skip_special=skip)) == made.decode(ids, skip_special=skip)


@pytest.mark.parametrize("decoder", [None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}])
def test_stream_of_any_other_decoder_comes_at_the_end(decoder: Any) -> None:
    made = tokenizer(t1("always") | {"decoder": decoder})
    assert streamed(made, [277, 275]) == ["", "", made.decode([277, 275])]


def test_text_is_neither_cut_nor_padded() -> None:
    spec = t0() | {"truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0},
                   "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                               "pad_type_id": 0, "pad_token": "<|pad|>"}}
    assert tokenizer(spec).encode("hello world") == [264, 269]


def test_a_tokenizer_that_does_not_load_is_malformed() -> None:
    with pytest.raises(Malformed) as err:
        tokenizer({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}})
    assert err.value.code == "K507"


def test_names_of_bos_and_eos() -> None:
    made = Tokenizer(from_gguf(t0_gguf(), "t.gguf"))
    assert (made.bos_token, made.eos_token) == (SPECIAL[1], SPECIAL[2])
    assert tokenizer(t1("never")).bos_token == "" and len(T1_TOKENS) == tokenizer(t1("never")).vocab_size
