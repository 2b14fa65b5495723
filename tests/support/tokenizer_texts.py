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


EVERYDAY = [
    "", " ", "  ", "\n", "\n\n", "\t", "\t\t x", " \n ", "hello", " hello", "hello ", "  hello  ",
    "Hello, World!", "The quick brown fox jumps over the lazy dog.", "I'll don't WE'VE can't it's y'all",
    "3.14159 1,000,000 2024-07-18 123456789012345", "https://example.com/a?b=c&d=e#f", "foo@bar.com",
    "你好，世界！今天天气很好。", "日本語のテキスト、カタカナ ひらがな", "안녕하세요 세계",
    "ｆｕｌｌ　ｗｉｄｔｈ", "中英mixed混合text文本", "مرحبا بالعالم، كيف حالك؟", "שלום עולם",
    "\u202bRTL\u202c mix אבג abc", "فارسی ۱۲۳ اعداد", "नमस्ते दुनिया", "ภาษาไทย", "Привет, мир", "Ελληνικά",
    "Ünïcödé naïve café", "e\u0301 A\u030a \u1e9b\u0323", "ﬁ ﬂ ½ ²", "😀", "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽", "🇫🇷🇯🇵",
    "a😀b 😀 c", "❤️ ☃︎", "👨‍💻 codes", "def f(x: int) -> str:\n\tif x >= 10:\n\t\treturn  \"a\" * x  # ok\n",
    "int main(void) {\r\n    return 0;\r\n}\r\n", "<div class=\"a\">&nbsp;</div>",
    "SELECT * FROM t WHERE a='b' -- c", "\\n \\t \\\\ \"q\" 'q' `q`", "{\"a\": [1, {\"b\": null}]}", "x" * 300,
    " " * 300, "\n" * 50, "\t" * 50, "=-" * 80, "!!!!!!??", "—–-", "\x00\x01\x7f", "\u200b\u200d\ufeff",
    "\ufffd", "▁ under ▁▁", "<0x0A>", "##x", "Ġ Ċ"]
INVALID = [b"\xff\xfe", b"abc\xe4\xbd", b"\xc3(", b"a\x80b\x80", b"\xf0\x9f\x98 tail", b"\xed\xa0\x80", b"ok \xe2\x82 no"]


def everyday(special: list[str]) -> list[str]:
    """More than 200 texts: the everyday ones, random ones, control tokens inside texts, and bytes that are not UTF-8."""
    rng, words = random.Random("everyday"), ["hello", " world", "\n", " ", "x", "你好", "😀"]
    spoken = ["".join(rng.choice([rng.choice(special), *words]) for _ in range(rng.randint(1, 7))) for _ in range(60)] \
        if special else []
    return [*EVERYDAY, *texts("parity", 150), *spoken, *(raw.decode("utf-8", "surrogateescape") for raw in INVALID)]
