"""Texts that tell tokenizers apart: borders between scripts, spaces, digits, contractions, marks and control names."""
from __future__ import annotations

import random

FRAGMENTS = [
    "'s", "'S", "'re", "'LL", "'ve", "a", "A", "b", "Ab", "aB", "ABC", "abc", "HelloWorld", "é",
    "É", "ñ", "e\u0301", "\u0301", "नमस्ते", "Ж", "дом", "ДОМ", "Straße", "ǅ", "ʰ", "ª", "1", "12",
    "123", "1234567", "٣", "½", "Ⅷ", "一", "三千", "漢字", "㐀", "𠀀", "〇", "豈", "か", "カナ", "ー", "ｱ",
    "한글", "ㄱ", "ㄅ", "ก", "เมือง", "ລາວ", "ខ្មែរ", "မြန်", "_", "-", "--", "!", "?", "...", "/",
    "//", "\"", "(", ")", "[", "]", "{", "}", "<", ">", "=", "+", "$", "^", "~", "|", "`", "#",
    "%", "&", "*", ",", ";", ":", "@", "\\", "…", "“", "”", "—", "，", "。", "、", "；", "！", "·", "€",
    "☃", "😀", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u200b", "\ufeff", "\ufffd",
    "IMGIMGABCZ", "<sentinel:12>", "don't", "we'll", "I'M", "''", "0", "9", "00", "0000", "00000",
    "a1", "1a", "1,000", "3.14", "▁", "<0x0A>", "<s>", "</s>", "ſ", "ﬀ", "𝐀", "𝟎", "𐐀", "߀", "،",
    "।",
]
SPACES = [" ", "  ", "   ", "\n", "\r\n", "\n\n", "\t", " \n", "\u3000", "\u00a0", "\u0085", "\u2028", "' ",
          ".\n", "/\n", "\x00", "\x0b"]


def texts(seed: str, count: int) -> list[str]:
    """Random joins of the fragments, the same ones for the same seed."""
    rng, pool = random.Random(seed), [*FRAGMENTS, *SPACES * 3]
    return ["".join(rng.choice(pool) * rng.choice((1, 1, 1, 2, 3)) for _ in range(rng.randint(1, 10))) for _ in range(count)]


def pair_vocabulary(samples: list[str]) -> tuple[list[str], list[str]]:
    """Tokens and merges in which every two neighbouring bytes of the samples merge, so that each cut between them shows."""
    from uaii.frontend.tokenizer.parts import BYTES
    pairs = sorted({pair for text in samples for pair in zip(text.encode(), text.encode()[1:], strict=False)})
    random.Random("pairs").shuffle(pairs)
    return [*BYTES, *(BYTES[a] + BYTES[b] for a, b in pairs)], [f"{BYTES[a]} {BYTES[b]}" for a, b in pairs]
