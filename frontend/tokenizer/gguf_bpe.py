"""GGUF vocabularies with merges: byte-level BPE (`gpt2`) and BPE on raw UTF-8 (`gemma4` and its pre-tokenizers)."""
from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any

from tokenizers import Tokenizer

from uaii.frontend.tokenizer import parts
from uaii.frontend.tokenizer.gguf_special import Specials
from uaii.frontend.tokenizer.gguf_vocab import GGML, Kind, Vocab, key_of, strings
from uaii.frontend.tokenizer.parts import BYTES, Json, Merge
from uaii.ir.diag import Malformed, Unsupported

# Bytes that no valid UTF-8 text contains, so that no text misses their symbol.
NEVER = {0xC0, 0xC1, *range(0xF5, 0x100)}
DEFAULT_NOTE = ("WARNING: the file {what}, so llama.cpp's `default` pre-tokenizer is used. Most models were trained with "
                "another one: expect other token ids and worse output. Convert the model again with a current converter.")


@cache
def pre_tokenizers() -> dict[str, Any]:
    """The table of pre-tokenizers, see pre_regexes.json."""
    text = resources.files(__package__).joinpath("pre_regexes.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def pre_tokenizer(metadata: Mapping[str, Any], file: str, model: str, notes: list[str]) -> Json:
    """The entry for the file's tokenizer.ggml.pre, with its expressions under `regexes`.

    Raises Unsupported K502 for a name that is not in the table; absent or `default` is llama.cpp's default, noted loudly.
    """
    name = "gemma4" if model == "gemma4" else metadata.get(GGML + "pre", "")
    table = pre_tokenizers()
    if name in ("", "default"):
        notes.append(DEFAULT_NOTE.format(what="names no pre-tokenizer" if name == "" else "says pre-tokenizer `default`"))
        name = "default"
    if name not in table["names"]:
        raise Unsupported("K502", f"unknown pre-tokenizer {name!r}", key_of(file, metadata, GGML + "pre"),
                          why="the pre-tokenizer decides where text is cut; any other one gives other tokens in silence",
                          hint="known: " + ", ".join(table["names"]))
    entry: Json = table["names"][name]
    return {"byte_level": True, "ignore_merges": False, "add_bos": False} | entry | {
        "regexes": table["splits"][entry["split"]], "name": name}


def read_merges(vocab: Vocab) -> list[Merge]:
    """The merges as pairs, first spelling of a repeated pair kept.

    Raises Malformed K504 when there are none, or when one cannot be parsed or names a token that is not there.
    """
    where = vocab.key("merges")
    if GGML + "merges" not in vocab.metadata:
        raise Malformed("K504", f"the vocabulary of {len(vocab.tokens)} tokens comes with 0 merges", where,
                        why="byte-level BPE without merges gives one token per byte",
                        hint="convert the model again with a current converter")
    lines = strings(vocab.file, vocab.metadata, GGML + "merges")
    pairs, bad = [], []
    for line in lines:
        cut = line.find(" ", 1)
        pair = (line[:cut], line[cut + 1:])
        if cut < 0 or not all(text in vocab.ids for text in (*pair, pair[0] + pair[1])):
            bad.append(line)
        pairs.append(pair)
    if bad or not lines:
        raise Malformed("K504", f"{len(bad)} of {len(lines)} merges cannot be used"
                        + (f", the first is {ascii(bad[0])}" if bad else ""), where,
                        why="a merge is two tokens with one space between, and the result must be a token too")
    return list(dict.fromkeys(pairs))


def build(vocab: Vocab, specials: Specials, pre: Json, post: Json | None, rstrip: set[int], notes: list[str]) -> str:
    """The tokenizer.json of a vocabulary with merges."""
    merges = read_merges(vocab)
    model = parts.bpe(vocab.ids, merges, byte_fallback=not pre["byte_level"], ignore_merges=pre["ignore_merges"])
    cuts = [parts.split(regex) for regex in pre["regexes"]]
    shape: dict[str, Json | None]
    if pre["byte_level"]:
        shape = {"normalizer": None, "decoder": parts.byte_level(),
                 "pre_tokenizer": parts.sequence("pretokenizers", [*cuts, parts.byte_level(), *_gaps(vocab, notes)])}
    else:
        shape = {"normalizer": parts.replace(" ", "▁"), "decoder": parts.spaced_decoder(strip=False),
                 "pre_tokenizer": parts.sequence("pretokenizers", cuts)}
    built = {vocab.ids[left + right] for left, right in merges}
    special = specials.control | (specials.by_text - built)
    if plain := specials.by_text & built:
        notes.append(f"{', '.join(ascii(vocab.tokens[i]) for i in sorted(plain))} is an ordinary token, matched as text, "
                     "though llama.cpp takes it for a control token")
    normal = _made_by_merges(vocab, special & built, lambda added: parts.document(
        model, added=added, post_processor=None, **shape), special | specials.user) if special & built else set()
    if normal:
        names = ", ".join(ascii(vocab.tokens[i]) for i in sorted(normal)[:4])
        notes.append(f"{len(normal)} tokens are marked as control but made by merges; they stay ordinary: {names}")
    return parts.document(model, added=added_tokens(vocab, special - normal, specials.user - special, rstrip),
                          post_processor=post, **shape)


def added_tokens(vocab: Vocab, special: Iterable[int], user: Iterable[int], rstrip: set[int]) -> list[Json]:
    """Control tokens (hidden in output) and user-defined ones (shown), matched whole at their own ids."""
    return [parts.added_token(i, vocab.tokens[i], special=kind, rstrip=i in rstrip)
            for kind, ids in ((True, special), (False, user)) for i in ids]


def _gaps(vocab: Vocab, notes: list[str]) -> list[Json]:
    missing = [b for b, symbol in enumerate(BYTES) if symbol not in vocab.ids]
    heard = [b for b in missing if b not in NEVER]
    if heard:
        notes.append(f"WARNING: the vocabulary has no symbol for {len(heard)} bytes that text can hold "
                     f"({', '.join(f'0x{b:02X}' for b in heard[:8])}); as in llama.cpp they are dropped from the input")
    # Dropped before the merges run, and as a border: what stood on both sides of the byte must not be merged.
    return [parts.split("[" + "".join(f"\\x{{{ord(BYTES[b]):X}}}" for b in missing) + "]", "Removed")] if missing else []


def _made_by_merges(vocab: Vocab, doubtful: set[int], document: Callable[[list[Json]], str],
                    special: set[int]) -> set[int]:
    others = [parts.added_token(i, vocab.tokens[i], special=True) for i in special - doubtful]
    tokenizer = Tokenizer.from_str(document(others))
    texts = {i: tokenizer.decode([i], skip_special_tokens=False) for i in doubtful
             if vocab.types[i] != Kind.UNKNOWN}
    return {i for i, text in texts.items() if tokenizer.encode(text, add_special_tokens=False).ids == [i]}
