"""What the keys of a GGUF tokenizer decide, and what is refused."""
from __future__ import annotations

from typing import Any

import pytest
from tiny_tokenizers import T0_TOKENS, t0_gguf, t1_gguf

from uaii.frontend.tokenizer.gguf import from_gguf
from uaii.frontend.tokenizer.text import Tokenizer
from uaii.ir.diag import Diagnostic, Malformed, Unsupported


def notes(metadata: dict[str, Any]) -> str:
    return "\n".join(from_gguf(metadata, "t.gguf").notes)


def refusal(metadata: dict[str, Any]) -> Diagnostic:
    with pytest.raises(Diagnostic) as err:
        from_gguf(metadata, "t.gguf")
    return err.value


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", "plamo2", "none", "no_vocab", "whitespace", "hybriddna", "qux"])
def test_other_tokenizer_kinds_are_refused_by_name(kind: str) -> None:
    err = refusal({"tokenizer.ggml.model": kind})
    assert isinstance(err, Unsupported) and err.code == "K501" and repr(kind) in err.says


def test_unknown_pre_tokenizer_is_refused_by_name() -> None:
    err = refusal(t0_gguf(pre="not-a-real-pre"))
    assert isinstance(err, Unsupported) and err.code == "K502" and "not-a-real-pre" in err.says and "llama-bpe" in err.hint


@pytest.mark.parametrize("pre", [None, "", "default"])
def test_missing_pre_tokenizer_is_noted_loudly(pre: str | None) -> None:
    assert "WARNING" in notes(t0_gguf(pre=pre))
    assert "WARNING" not in notes(t0_gguf(pre="llama-bpe"))


def test_pre_tokenizer_means_nothing_to_sentencepiece() -> None:
    assert "pre-tokenizer" not in notes(t1_gguf(pre="default")) + notes(t1_gguf(pre="not-a-real-pre"))


@pytest.mark.parametrize(("merges", "says"), [
    (None, "270 tokens comes with 0 merges"), ([], "0 of 0 merges"), (["h e", "nospace"], "1 of 2 merges"),
    (["h e", "h w"], "1 of 2 merges"), (["h e", "zz z"], "1 of 2 merges")])
def test_merges_that_cannot_be_used_are_counted(merges: list[str] | None, says: str) -> None:
    err = refusal(t0_gguf(merges=merges))
    assert isinstance(err, Malformed) and err.code == "K504" and says in err.says


@pytest.mark.parametrize("keys", [
    {"tokens": None}, {"tokens": [1, 2]}, {"token_type": [1]}, {"token_type": ["a"] * 270}, {"bos_token_id": "1"},
    {"add_bos_token": 1}, {"merges": [1]}, {"model": 3}])
def test_wrong_keys_are_malformed(keys: dict[str, Any]) -> None:
    err = refusal(t0_gguf(**keys))
    assert isinstance(err, Malformed) and err.code == "K503"


def test_a_text_with_two_ids_is_malformed() -> None:
    err = refusal(t0_gguf(tokens=[*T0_TOKENS[:-1], "he"]))
    assert err.code == "K505" and "261" in err.says and "269" in err.says


@pytest.mark.parametrize(("pre", "flag", "adds"), [
    ("llama-bpe", None, True), ("tekken", None, True), ("gpt-2", None, False), ("gpt-2", True, True),
    ("llama-bpe", False, False)])
def test_bos_by_key_then_by_pre_tokenizer(pre: str, flag: bool | None, adds: bool) -> None:
    files = from_gguf(t0_gguf(pre=pre, add_bos_token=flag), "t.gguf")
    assert (files.add_bos, Tokenizer(files).encode("hello")) == (adds, [1, 264] if adds else [264])
    assert Tokenizer(files).encode("hello", add_special=False) == [264]


def test_sentencepiece_adds_bos_by_default_even_to_nothing() -> None:
    assert Tokenizer(from_gguf(t1_gguf(), "t.gguf")).encode("") == [1]
    assert Tokenizer(from_gguf(t1_gguf(add_bos_token=False, add_eos_token=True), "t.gguf")).encode("hello") == [277, 2]


def test_default_bos_of_gpt2_is_not_an_ordinary_token() -> None:
    files = from_gguf(t0_gguf(bos_token_id=None, eos_token_id=None, pre="llama-bpe"), "t.gguf")
    assert files.bos_id is None and not files.add_bos and files.stop_ids == (2,)  # <|end|> by its text
    assert "ordinary token" in "".join(files.notes) and "WARNING: BOS should be added" in "".join(files.notes)


def test_ids_outside_the_vocabulary_are_dropped_and_noted() -> None:
    files = from_gguf(t0_gguf(eos_token_id=999, padding_token_id=270), "t.gguf")
    assert files.stop_ids == (2,) and files.pad_id is None
    assert "eos_token_id = 999" in "".join(files.notes) and "padding_token_id = 270" in "".join(files.notes)


def test_end_of_generation_is_by_key_and_by_text() -> None:
    named = ["<|im_end|>", "<|eom_id|>", "<fim_pad>", "<|file_sep|>", "plain"]
    files = from_gguf(t0_gguf(tokens=[*T0_TOKENS, *named], token_type=[3] * 5 + [1] * 265 + [3] * 5, eos_token_id=4,
                              eot_token_id=3), "t.gguf")
    assert files.stop_ids == (2, 3, 4, 270, 271, 272, 273)


def test_gpt_oss_end_of_message_does_not_end_generation() -> None:
    files = from_gguf(t0_gguf(tokens=[*T0_TOKENS, "<|return|>", "<|call|>"], token_type=[3] * 5 + [1] * 265 + [3] * 2,
                              eos_token_id=270), "t.gguf")
    assert files.stop_ids == (270, 271)


def test_control_and_user_tokens_match_whole_at_their_ids() -> None:
    odd = ["<｜User｜>", "<two words>", "   ", "[UNUSED]", "é«"]
    types = [3] * 5 + [1] * 265 + [3, 4, 4, 5, 4]
    made = Tokenizer(from_gguf(t0_gguf(tokens=[*T0_TOKENS, *odd], token_type=types), "t.gguf"))
    for i in (0, 1, 2, 3, 4, 270, 271, 272, 274):
        assert made.encode([*T0_TOKENS, *odd][i]) == [i]
    assert 273 not in made.encode("[UNUSED]")
    assert made.decode([264, 270, 271]) == "hello<two words>" and made.decode([270], skip_special=False) == "<｜User｜>"
    assert max(made.encode("<|endoftext|> <pad> 世界")) < 275


def test_a_control_token_that_merges_build_stays_ordinary() -> None:
    types = [3] * 5 + [1] * 265
    types[264] = 3
    files = from_gguf(t0_gguf(token_type=types), "t.gguf")
    made = Tokenizer(files)
    assert made.encode("xhellox") == Tokenizer(from_gguf(t0_gguf(), "t.gguf")).encode("xhellox")
    assert made.decode([264, 269]) == "hello world" and "made by merges" in "".join(files.notes)


def test_token_types_absent_leaves_only_what_the_texts_say() -> None:
    made = Tokenizer(from_gguf(t0_gguf(token_type=None), "t.gguf"))
    assert made.encode("<|end|>") == [2] and made.encode("<|user|>") != [3]


def test_texts_that_are_empty_or_not_utf8_never_match() -> None:
    files = from_gguf(
        t0_gguf(tokens=[*T0_TOKENS, "\udce4\udcb8", "", ""], token_type=[3] * 5 + [1] * 265 + [3, 1, 1]), "t.gguf")
    assert files.vocab_size == 273 and "1 token texts are not UTF-8" in "".join(files.notes)
    assert Tokenizer(files).encode("hello") == [264]


def test_bytes_without_a_symbol_are_dropped_as_a_border() -> None:
    # byte 0x6C, "l", has no symbol: what stands on both sides must not merge over the gap
    tokens = ["zz" if t == "l" else t for t in T0_TOKENS if t not in ("ll", "hell", "hello", "rl", "Ġworl", "Ġworld", "Ġworl")]
    files = from_gguf(t0_gguf(tokens=tokens, token_type=[3] * 5 + [1] * (len(tokens) - 5), merges=["h e"]), "t.gguf")
    made = Tokenizer(files)
    assert made.encode("hle") == [5 + ord("h"), 5 + ord("e")] and made.encode("he") == [tokens.index("he")]
    assert "no symbol for 1 bytes" in "".join(files.notes)


def test_phi3_eats_white_space_after_special_tokens() -> None:
    tokens = t1_gguf()["tokenizer.ggml.tokens"]
    types = t1_gguf()["tokenizer.ggml.token_type"]
    odd = {"tokens": [*tokens, "<|user|>"], "token_type": [*types, 3], "scores": [*t1_gguf()["tokenizer.ggml.scores"], 0.0]}
    plain, phi = (Tokenizer(from_gguf(t1_gguf(**odd, **{"general.name": name}), "t.gguf")) for name in ("Llama", "My Phi3 mini"))
    user = len(tokens)
    assert phi.encode("<|user|>\n hello<s> hello", add_special=False) == [user, 277, 1, 259, 277]
    assert plain.encode("<|user|> hello", add_special=False) == [user, 259, 277]


def test_mistral_gets_no_space_after_control_tokens() -> None:
    tokens, types = t1_gguf()["tokenizer.ggml.tokens"], t1_gguf()["tokenizer.ggml.token_type"]
    odd = {"tokens": [*tokens, "[INST]", "[/INST]"], "token_type": [*types, 3, 3],
           "scores": [*t1_gguf()["tokenizer.ggml.scores"], 0.0, 0.0]}
    made = Tokenizer(from_gguf(t1_gguf(**odd), "t.gguf"))
    assert made.encode("[INST]hello[/INST] hello", add_special=False) == [len(tokens), 270, len(tokens) + 1, 277]


def test_sentencepiece_without_scores_is_refused() -> None:
    assert refusal(t1_gguf(scores=None)).code == "K504"


def test_templates_of_the_file() -> None:
    files = from_gguf(t0_gguf(**{"tokenizer.chat_template": "{{ 1 }}", "tokenizer.chat_template.tool_use": "{{ 2 }}",
                                 "tokenizer.chat_templates": ["tool_use"]}), "t.gguf")
    assert (files.template, files.templates) == ("{{ 1 }}", {"tool_use": "{{ 2 }}"})
    for text in ("chatml", "", "mistral-v3-tekken"):
        files = from_gguf(t0_gguf(**{"tokenizer.chat_template": text}), "t.gguf")
        assert files.template is None and "not used" in "".join(files.notes)
