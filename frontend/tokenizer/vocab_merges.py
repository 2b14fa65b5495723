"""vocab.json and merges.txt (GPT-2's files) as a tokenizer.json."""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uaii.frontend.tokenizer import parts
from uaii.frontend.tokenizer.gguf_bpe import pre_tokenizers
from uaii.frontend.tokenizer.parts import Json
from uaii.frontend.tokenizer.settings import Settings, read_json, read_text
from uaii.ir.diag import Malformed, Unsupported
from uaii.ir.loc import File, Key

GPT2 = ("GPT2Tokenizer", "CodeGenTokenizer", "GPTNeoXTokenizer", "PreTrainedTokenizer", "TokenizersBackend", "")
QWEN = ("Qwen2Tokenizer",)
END = "<|endoftext|>"


def from_vocab_merges(said: Settings, config: Mapping[str, Any]) -> str:
    """The tokenizer.json of GPT-2's or Qwen2's tokenizer class over the folder's vocabulary.

    Raises Unsupported K506 for another class: these two files do not say how text is cut. Malformed K504, K512.
    """
    qwen = said.kind in QWEN or (not said.kind and str(config.get("model_type", "")).startswith(("qwen2", "qwen3")))
    if not qwen and said.kind not in GPT2:
        raise Unsupported("K506", f"vocab.json and merges.txt of {said.kind} are not read",
                          Key("tokenizer_config.json", "tokenizer_class", said.kind),
                          why="the two files do not say how the class cuts text", hint="save the tokenizer as tokenizer.json")
    if not said.kind and not qwen:
        said.notes.append("vocab.json and merges.txt do not name a tokenizer class: GPT-2's way of cutting text is used")
    vocab = _vocab(said.folder / "vocab.json")
    merges = _merges(said.folder / "merges.txt", vocab)
    added = _added(said, vocab)
    if qwen:
        cuts = [*(parts.split(regex) for regex in pre_tokenizers()["splits"]["qwen2"]), parts.byte_level()]
        cut = parts.sequence("pretokenizers", cuts)
    else:
        cut = parts.byte_level() | {"use_regex": True, "add_prefix_space": bool(said.config.get("add_prefix_space", False))}
    bos = said.special.get("bos_token")
    front = (bos, vocab[bos]) if said.config.get("add_bos_token") is True and bos in vocab else None
    return parts.document(parts.bpe(vocab, merges), added=added, normalizer={"type": "NFC"} if qwen else None,
                          pre_tokenizer=cut, post_processor=parts.around(front, None), decoder=parts.byte_level())


def _vocab(path: Path) -> dict[str, int]:
    vocab = read_json(path)
    if not vocab or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in vocab.values()):
        raise Malformed("K512", f"{path.name} must map each token to its id", File(str(path)))
    return vocab


def _merges(path: Path, vocab: Mapping[str, int]) -> list[parts.Merge]:
    lines = [line for line in read_text(path).split("\n") if line.strip("\r") and not line.startswith("#version")]
    pairs = [tuple(line.rstrip("\r").split(" ")) for line in lines]
    bad = [i for i, pair in enumerate(pairs)
           if len(pair) != 2 or not all(text in vocab for text in (*pair, "".join(pair)))]
    if bad or not pairs:
        raise Malformed("K504", f"{len(bad)} of {len(pairs)} merges cannot be used"
                        + (f", the first is {ascii(lines[bad[0]])}" if bad else ""), File(str(path)),
                        why="a merge is two tokens with one space between, and the result must be a token too")
    return [(pair[0], pair[1]) for pair in dict.fromkeys(pairs)]


def _added(said: Settings, vocab: dict[str, int]) -> list[Json]:
    if END in vocab and not said.kind:
        for role in ("bos_token", "eos_token", "unk_token"):
            said.special.setdefault(role, END)
    return added_from(said, vocab)


def added_from(said: Settings, vocab: dict[str, int]) -> list[Json]:
    """The folder's added and special tokens; they join the vocabulary, as the library gives other ids to those outside.

    Raises Malformed K513 when a text or an id is there twice with different partners.
    """
    ids = {i: text for text, i in vocab.items()}
    special = set(said.special.values())
    tokens = {vocab[text]: parts.added_token(vocab[text], text, special=True) for text in special if text in vocab}
    for i, token in said.added.items():
        text = token["content"]
        if vocab.get(text, i) != i or ids.get(i, text) != text:
            raise Malformed("K513", f"added token {text!r} has id {i}, which is already taken or another one in the "
                            "vocabulary", File(str(said.folder)))
        vocab[text] = i
        made = parts.added_token(i, text, special=bool(token.get("special")) or text in special)
        tokens[i] = made | {k: bool(token[k]) for k in ("single_word", "lstrip", "rstrip", "normalized") if k in token}
    return list(tokens.values())
