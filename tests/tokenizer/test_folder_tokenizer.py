"""Tokenizers of Hugging Face folders: which file is read, what it adds, where templates and stop ids come from."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import T0_MERGES, T0_TOKENS, packed, t0, t1, write_folder

from uaii.frontend.tokenizer.folder import from_artifact, from_folder
from uaii.frontend.tokenizer.text import Tokenizer
from uaii.ir.diag import Diagnostic, Malformed, Unsupported

VOCAB = {token: i for i, token in enumerate(T0_TOKENS)}
MERGES = "#version: 0.2\n" + "\n".join(" ".join(m) for m in T0_MERGES) + "\n"
NONE = "no HF tokenizer found in {} (need tokenizer.json, vocab.json+merges.txt, or tokenizer.model)"


def refusal(folder: Path, config: dict[str, Any] | None = None, generation: dict[str, Any] | None = None) -> Diagnostic:
    with pytest.raises(Diagnostic) as err:
        from_folder(folder, config or {}, generation)
    return err.value


def test_tokenizer_json_is_copied_as_it_is(tmp_path: Path) -> None:
    text = json.dumps(t0(bos=True), indent=3)
    files = from_folder(write_folder(tmp_path, tokenizer_json=text), {}, None)
    assert files.tokenizer_json == text and (files.bos_id, files.add_bos, files.vocab_size) == (1, True, 270)


@pytest.mark.parametrize("spelling", [lambda pair: list(pair), " ".join])
def test_both_spellings_of_merges(tmp_path: Path, spelling: Any) -> None:
    spec = t0()
    spec["model"]["merges"] = [spelling(pair) for pair in T0_MERGES]
    made = Tokenizer(from_folder(write_folder(tmp_path, tokenizer_json=spec), {}, None))
    assert made.encode("hello world") == [264, 269]


def test_empty_merges_and_impossible_merges_are_malformed(tmp_path: Path) -> None:
    spec = t0()
    for merges, code in (([], "K504"), ([["h", "zz"]], "K507")):
        spec["model"]["merges"] = merges
        assert refusal(write_folder(tmp_path, tokenizer_json=spec)).code == code


@pytest.mark.parametrize(("text", "code"), [("{}", "K507"), ("[]", "K507"), ("{", "K507"), (b"\xff", "K512"),
                                            ("version https://git-lfs.github.com/spec/v1\noid", "K510"),
                                            ("<!DOCTYPE html><title>Sign in</title>", "K510")])
def test_broken_tokenizer_json(tmp_path: Path, text: Any, code: str) -> None:
    err = refusal(write_folder(tmp_path, tokenizer_json=text))
    assert isinstance(err, Malformed) and err.code == code


@pytest.mark.parametrize("extra", [{}, {"spiece_model": "x"}])
def test_no_tokenizer_says_what_was_looked_for(tmp_path: Path, extra: dict[str, Any]) -> None:
    err = refusal(write_folder(tmp_path, **extra))
    assert err.says == NONE.format(tmp_path) and all(name.replace("_", ".") in err.hint for name in extra)


def test_unigram_json_needs_its_model(tmp_path: Path) -> None:
    unigram = t1("legacy")
    unigram["model"] = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁a", -1.0]]}
    err = refusal(write_folder(tmp_path, tokenizer_json=unigram))
    assert isinstance(err, Unsupported)
    assert err.says == "Unigram tokenizer.json is not loaded. Use tokenizer.model (SentencePiece) or a BPE tokenizer.json"
    write_folder(tmp_path, tokenizer_model=packed("mistral-7b-v0.1.tokenizer.model"))
    assert from_folder(tmp_path, {}, None).vocab_size == 32000


def test_added_tokens_outside_the_vocabulary_keep_their_ids(tmp_path: Path) -> None:
    spec = t0()
    spec["added_tokens"].append(spec["added_tokens"][0] | {"id": 310, "content": "<|extra|>"})
    files = from_folder(write_folder(tmp_path, tokenizer_json=spec), {}, None)
    assert Tokenizer(files).encode("<|extra|>") == [310] and files.vocab_size == 311 and "keep their ids" in "".join(files.notes)
    spec["added_tokens"][-1]["id"] = 264
    assert refusal(write_folder(tmp_path, tokenizer_json=spec)).code == "K513"


def test_special_tokens_by_name(tmp_path: Path) -> None:
    files = from_folder(write_folder(
        tmp_path, tokenizer_json=t0(), special_tokens_map_json={"eos_token": "<|user|>", "pad_token": {"content": "<|pad|>"}},
        tokenizer_config_json={"eos_token": {"content": "<|end|>"}, "bos_token": "<nope>", "tokenizer_class": None}), {}, None)
    assert (files.eos_id, files.pad_id, files.bos_id, files.stop_ids) == (2, 0, None, (2,))
    assert "<nope>" in "".join(files.notes) and files.config["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_disagreement_about_bos_is_said(tmp_path: Path) -> None:
    for adds, flag in ((True, False), (False, True)):
        files = from_folder(write_folder(tmp_path, tokenizer_json=t0(bos=adds), tokenizer_config_json={"add_bos_token": flag}),
                            {}, None)
        assert files.add_bos is adds and "WARNING: tokenizer_config.json says add_bos_token" in "\n".join(files.notes)


@pytest.mark.parametrize(("scheme", "flag", "warns"), [("always", None, True), ("first", None, False), ("first", False, True),
                                                       ("never", False, False), ("legacy", True, True)])
def test_disagreement_about_the_prefix_space_is_said(tmp_path: Path, scheme: str, flag: bool | None, warns: bool) -> None:
    config = {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": flag}
    files = from_folder(write_folder(tmp_path, tokenizer_json=t1(scheme), tokenizer_config_json=config), {}, None)
    assert ("tokenizer.json is followed" in "\n".join(files.notes)) is warns


@pytest.mark.parametrize(("generation", "config", "eos", "wanted"), [
    ({"eos_token_id": [3, 4]}, {"eos_token_id": 2}, None, (3, 4)), ({}, {"eos_token_id": 2}, None, (2,)),
    ({"eos_token_id": None}, {"eos_token_id": [2, 5]}, None, (2, 5)), ({"do_sample": True}, {"eos_token_id": 2}, None, (2,)),
    (None, {"eos_token_id": 2}, None, (2,)), (None, {"eos_token_id": None}, "<|end|>", (2,)), (None, {}, None, ()),
    ({"eos_token_id": 3}, {}, "<|end|>", (3,)), (None, {"text_config": {"eos_token_id": 4}}, None, (4,))])
def test_stop_ids(tmp_path: Path, generation: Any, config: Any, eos: str | None, wanted: tuple[int, ...]) -> None:
    folder = write_folder(tmp_path, tokenizer_json=t0(), tokenizer_config_json={"eos_token": eos})
    files = from_folder(folder, config, generation)
    assert files.stop_ids == wanted
    assert any(("stop ids" in note) if wanted else ("only the length" in note) for note in files.notes)


@pytest.mark.parametrize("eos", [999, -1, True, "2", [2, 320]])
def test_stop_ids_outside_the_vocabulary_are_malformed(tmp_path: Path, eos: Any) -> None:
    folder = write_folder(tmp_path, tokenizer_json=t0())
    assert refusal(folder, {"eos_token_id": eos, "vocab_size": 320}).code == "K511"
    assert from_folder(folder, {"eos_token_id": 319, "vocab_size": 320}, None).stop_ids == (319,)


@pytest.mark.parametrize("pad", [-1, [0], 320, None])
def test_padding_need_not_exist(tmp_path: Path, pad: Any) -> None:
    files = from_folder(write_folder(tmp_path, tokenizer_json=t0()), {"pad_token_id": pad, "vocab_size": 320}, None)
    assert files.pad_id is None and ("pad_token_id" in "".join(files.notes)) is (pad is not None)


LIST = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]


@pytest.mark.parametrize(("inline", "jinja", "template", "named"), [
    (None, None, None, {}), ("C", None, "C", {}), (None, "J", "J", {}), ("C", "J", "J", {}), (LIST, None, "D", {"tool_use": "T"}),
    (LIST[1:], None, None, {"tool_use": "T"}), (" ", None, None, {})])
def test_where_the_template_comes_from(tmp_path: Path, inline: Any, jinja: str | None, template: Any, named: Any) -> None:
    files = {"tokenizer_config_json": {"chat_template": inline}} | ({"chat_template_jinja": jinja} if jinja else {})
    found = from_folder(write_folder(tmp_path, tokenizer_json=t0(), **files), {}, None)
    assert (found.template, found.templates) == (template, named) and "chat_template" not in found.config
    assert ("chat_template.jinja is used" in "".join(found.notes)) is (inline == "C" and jinja == "J")


def test_vocab_and_merges(tmp_path: Path) -> None:
    files = from_folder(write_folder(tmp_path, vocab_json=VOCAB, merges_txt=MERGES), {"model_type": "llama"}, None)
    assert Tokenizer(files).encode("hello world") == [264, 269] and "GPT-2's way" in "".join(files.notes)
    files = from_folder(write_folder(tmp_path, tokenizer_config_json={
        "tokenizer_class": "GPT2Tokenizer", "bos_token": "<|bos|>", "add_bos_token": True,
        "added_tokens_decoder": {"280": {"content": "<|x|>", "rstrip": True, "special": True}}}), {}, None)
    assert Tokenizer(files).encode("<|x|>  hello<|bos|>") == [1, 280, 264, 1]


def test_qwen_vocab_and_merges_are_cut_as_qwen_cuts(tmp_path: Path) -> None:
    vocab, merges = VOCAB | {"12": 270}, MERGES + "1 2\n"
    for config, ids in (({"model_type": "qwen2"}, [5 + ord("1"), 5 + ord("2")]), ({"model_type": "gpt2"}, [270])):
        files = from_folder(write_folder(tmp_path, vocab_json=vocab, merges_txt=merges), config, None)
        assert Tokenizer(files).encode("12") == ids


@pytest.mark.parametrize(("files", "code"), [
    ({"merges_txt": MERGES + "h zz\n"}, "K504"), ({"merges_txt": "#version\n"}, "K504"), ({"vocab_json": {"a": "b"}}, "K512"),
    ({"tokenizer_config_json": {"tokenizer_class": "RobertaTokenizer"}}, "K506"),
    ({"added_tokens_json": {"<|x|>": 264}}, "K513"), ({"tokenizer_config_json": "{"}, "K512")])
def test_vocab_and_merges_that_cannot_be_used(tmp_path: Path, files: dict[str, Any], code: str) -> None:
    assert refusal(write_folder(tmp_path, **{"vocab_json": VOCAB, "merges_txt": MERGES} | files)).code == code


def test_an_artifact_reads_back_what_was_shipped(tmp_path: Path) -> None:
    unigram = t1("legacy")
    unigram["model"] = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0], ["▁a", -1.0]]}
    write_folder(tmp_path, tokenizer_json=unigram, tokenizer_config_json={"eos_token": "</s>"}, chat_template_jinja="J",
                 generation_config_json={"eos_token_id": [1, 2]})
    files = from_artifact(tmp_path)
    assert (files.stop_ids, files.eos_id, files.template) == ((1, 2), 2, "J")
    assert Tokenizer.from_artifact(tmp_path).encode("a") == [3]
