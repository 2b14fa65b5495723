"""Merges for a vocabulary that has scores instead of merges (SentencePiece BPE)."""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from uaii.frontend.tokenizer.parts import Merge


def merges_by_score(vocab: Mapping[str, int], scores: Mapping[str, float], *, skip: Iterable[str] = ()) -> list[Merge]:
    """Every way to put a token together from two others, the best-scored token first.

    SentencePiece and llama.cpp merge the adjacent pair whose concatenation scores highest, the leftmost of equals; a
    list of merges ranks pairs, so all splits of a token are listed together. `skip` names tokens that take no part.
    """
    parts = set(vocab).difference(skip)
    ranked = [(-scores[token], vocab[token], cut, token)
              for token in parts for cut in range(1, len(token)) if token[:cut] in parts and token[cut:] in parts]
    return [(token[:cut], token[cut:]) for _, _, cut, token in sorted(ranked)]


def tied(scores: Mapping[str, float], merges: Iterable[Merge]) -> list[str]:
    """The tokens that merges build and that share their score with another such token.

    Between these a list of merges goes by id where the scorer goes by place, so the split can differ.
    """
    built = {left + right for left, right in merges}
    seen: dict[float, list[str]] = {}
    for token in built:
        seen.setdefault(scores[token], []).append(token)
    return sorted(token for group in seen.values() if len(group) > 1 for token in group)
