"""Ranked bytes (the vocabulary of tiktoken) as the tokens and merges of a byte-level BPE model, without a difference."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from uaii.frontend.tokenizer import parts
from uaii.frontend.tokenizer.parts import BYTES, Json, Merge

Ranks = Mapping[bytes, int]
NEVER = 1 << 62
ALPHABET = dict(enumerate(BYTES))

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
    return token.decode("latin-1").translate(ALPHABET)


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
        if len(token) > 1 and (at := _halved(token, ranks.get)):
            text = symbols(token)
            merges.append((text[:at], text[at:]))
    return parts.bpe(vocab, merges, ignore_merges=True)


def _halved(token: bytes, rank: Callable[[bytes, int], int]) -> int | None:
    """Where the last two parts of a token meet; None when its parts do not join to it."""
    cuts = list(range(len(token) + 1))  # the parts lie between them
    costs = [rank(token[i:i + 2], NEVER) for i in cuts[:-2]]  # of the two parts around each inner cut
    while len(costs) > 1:
        if (lowest := min(costs)) == NEVER:
            return None
        i = costs.index(lowest)
        del costs[i], cuts[i + 1]
        if i:
            costs[i - 1] = rank(token[cuts[i - 1]:cuts[i + 1]], NEVER)
        if i < len(costs):
            costs[i] = rank(token[cuts[i]:cuts[i + 2]], NEVER)
    return cuts[1]


def document(made: Json, pattern: str, *, added: list[Json], post: Json | None, nfc: bool = False) -> str:
    """The text of tokenizer.json over such a model; added tokens join the vocabulary, as the library would renumber them."""
    made = made | {"vocab": made["vocab"] | {token["content"]: token["id"] for token in added}}
    cut: Any = parts.sequence("pretokenizers", [parts.split(pattern), parts.byte_level()])
    return parts.document(made, added=added, normalizer={"type": "NFC"} if nfc else None, pre_tokenizer=cut,
                          post_processor=post, decoder=parts.byte_level())
