"""Ranked bytes (the vocabulary of tiktoken) as the tokens and merges of a byte-level BPE model, without a difference."""
from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from uaii.frontend.tokenizer import parts
from uaii.frontend.tokenizer.parts import BYTES, Json, Merge

Ranks = Mapping[bytes, int]
NEVER = 1 << 62

# How models cut text before the merges: their own expressions, which Oniguruma cuts alike.
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
QWEN = WORDS + r"|\p{N}" + TAIL
LLAMA3 = WORDS + r"|\p{N}{1,3}" + TAIL
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
KIMI = "|".join((
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}")) + TAIL


def symbols(token: bytes) -> str:
    """A token's bytes in the byte alphabet."""
    return "".join(BYTES[b] for b in token)


def model(ranks: Ranks, offset: int = 0) -> Json:
    """The BPE model whose ids are rank + `offset`; it takes whole pieces first, as tiktoken does.

    tiktoken joins the two neighbours whose joint bytes have the lowest rank. Within the bytes of one token that goes the
    same way whatever stands around them, as long as nothing joins across their border; so the last two parts of a token are
    always the same two, and one merge for each token, in the order of ranks, says all of it. A token that its own parts
    never join to has no merge and is met as a whole piece only. All 256 single bytes must be there.
    """
    vocab = {symbols(token): rank + offset for token, rank in ranks.items()}
    merges: list[Merge] = []
    for token in sorted(ranks, key=ranks.__getitem__):
        if len(token) > 1 and (halves := _halves(token, ranks)):
            merges.append((symbols(halves[0]), symbols(halves[1])))
    return parts.bpe(vocab, merges, ignore_merges=True)


def _halves(token: bytes, ranks: Ranks) -> list[bytes] | None:
    found = [token[i:i + 1] for i in range(len(token))]
    costs = [ranks.get(a + b, NEVER) for a, b in pairwise(found)]
    while len(found) > 2:
        lowest = min(costs)
        if lowest == NEVER:
            return None
        i = costs.index(lowest)
        found[i:i + 2] = [found[i] + found[i + 1]]
        del costs[i]
        for left in (i - 1, i):
            if 0 <= left < len(costs):
                costs[left] = ranks.get(found[left] + found[left + 1], NEVER)
    return found


def document(made: Json, pattern: str, *, added: list[Json], post: Json | None, nfc: bool = False) -> str:
    """The text of tokenizer.json over such a model; added tokens join the vocabulary, as the library would renumber them."""
    made = made | {"vocab": made["vocab"] | {token["content"]: token["id"] for token in added}}
    cut: Any = parts.sequence("pretokenizers", [parts.split(pattern), parts.byte_level()])
    return parts.document(made, added=added, normalizer={"type": "NFC"} if nfc else None, pre_tokenizer=cut,
                          post_processor=post, decoder=parts.byte_level())
