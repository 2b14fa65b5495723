"""The parts of a tokenizer.json that several converters share; plain dicts in the library's own JSON form."""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]
Merge = tuple[str, str]


def byte_alphabet() -> list[str]:
    """The character that stands for each byte in byte-level BPE (GPT-2, bytes_to_unicode)."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(moved)) for b in range(256)]


BYTES = byte_alphabet()


def added_token(id_: int, content: str, *, special: bool, rstrip: bool = False) -> Json:
    """A token that is matched whole in the raw text, before everything else."""
    return {"id": id_, "content": content, "single_word": False, "lstrip": False, "rstrip": rstrip,
            "normalized": False, "special": special}


def bpe(vocab: Mapping[str, int], merges: Sequence[Merge], *, unk: str | None = None, byte_fallback: bool = False,
        ignore_merges: bool = False) -> Json:
    """A BPE model; every part and result of a merge must be in the vocabulary."""
    return {"type": "BPE", "dropout": None, "unk_token": unk, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": unk is not None, "byte_fallback": byte_fallback,
            "ignore_merges": ignore_merges, "vocab": dict(vocab), "merges": [list(pair) for pair in merges]}


def split(regex: str, behavior: str = "Isolated") -> Json:
    """Cut at the matches of an Oniguruma expression; by default matches and gaps both become pieces."""
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": False}


def replace(old: str, new: str) -> Json:
    """Replace a string, as a normalizer or a decoder."""
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def replace_regex(old: str, new: str) -> Json:
    """Replace the matches of an Oniguruma expression, as a normalizer."""
    return {"type": "Replace", "pattern": {"Regex": old}, "content": new}


def byte_level() -> Json:
    """Bytes to the byte alphabet and back, without GPT-2's own regular expression."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def metaspace(scheme: str) -> Json:
    """Space to ▁, with ▁ in front of every fragment (`always`), the first one (`first`) or none (`never`)."""
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}


def sequence(key: str, steps: Sequence[Json]) -> Json | None:
    """Several steps as one; `key` is normalizers, pretokenizers, processors or decoders."""
    if not steps:
        return None
    return steps[0] if len(steps) == 1 else {"type": "Sequence", key: list(steps)}


def spaced_decoder(*, strip: bool, byte_fallback: bool = True) -> Json:
    """▁ to space, <0xHH> to bytes, everything joined, and the space that encoding put in front taken off again."""
    steps = [replace("▁", " ")] + ([{"type": "ByteFallback"}] if byte_fallback else []) + [{"type": "Fuse"}]
    steps += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if strip else []
    return {"type": "Sequence", "decoders": steps}


def around(front: tuple[str, int] | None, back: tuple[str, int] | None) -> Json | None:
    """A post-processor that puts one token in front and one behind, when asked to add special tokens."""
    if front is None and back is None:
        return None

    def side(letter: str, type_id: int) -> list[Json]:
        def one(token: tuple[str, int] | None) -> list[Json]:
            return [{"SpecialToken": {"id": token[0], "type_id": type_id}}] if token else []
        return one(front) + [{"Sequence": {"id": letter, "type_id": type_id}}] + one(back)

    named = {text: {"id": text, "ids": [id_], "tokens": [text]} for text, id_ in filter(None, (front, back))}
    return {"type": "TemplateProcessing", "single": side("A", 0), "pair": side("A", 0) + side("B", 1),
            "special_tokens": named}


def document(model: Json, *, added: Sequence[Json], normalizer: Json | None, pre_tokenizer: Json | None,
             post_processor: Json | None, decoder: Json | None) -> str:
    """The text of tokenizer.json."""
    return json.dumps({"version": "1.0", "truncation": None, "padding": None,
                       "added_tokens": sorted(added, key=lambda token: int(token["id"])), "normalizer": normalizer,
                       "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": decoder,
                       "model": model}, ensure_ascii=False, separators=(",", ":"))
