"""What rank files (tekken.json, tiktoken) are tried on: texts, control tokens, and patterns as their authors wrote them."""
from __future__ import annotations

from pathlib import Path

from tokenizer_texts import texts

OUT = Path(__file__).parents[1] / "data" / "tokenizer" / "ranked.json.xz"
TEXTS = [*texts("ranks", 200),
         "", " ", "\n", "     x", " " * 40 + "y", "a" * 60, "The quick brown fox jumps over it.", "I'LL we've DON'T it'S",
         "def f(x: int) -> str:\n\tif x >= 10:\n\t\treturn  \"a\" * x  # ok\n", "<div class=\"a\">&nbsp;</div>\r\n",
         "مرحبا بالعالم، كيف حالك؟", "שלום עולם", "你好，世界！今天天气很好。", "日本語のテキスト、カタカナ", "안녕하세요 세계",
         "नमस्ते दुनिया", "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽", "Ünïcödé naïve", "e\u0301 A\u030a \u1e9b\u0323", "3.14159 1,000,000 2024-07-18",
         "<|endoftext|>a<|im_start|>user\nhi<|im_end|>\n", "[INST] hello [/INST]</s><s>", "<|im_user|>x<|im_middle|>y<|im_end|>"]
QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]
KIMI_SPECIAL = ["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|reserved_token_6005|>", "<|im_middle|>",
                *(f"<|reserved_token_{i}|>" for i in range(6007, 6256))]
PATTERNS = {
    "qwen": r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"""
            r"""| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    "llama3": r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"""
              r"""| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    "kimi": "|".join([
        r"""[\p{Han}]+""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"""
        r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"""
        r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""", r""" ?[^\s\p{L}\p{N}]+[\r\n]*""", r"""\s*[\r\n]+""", r"""\s+(?!\S)""", r"""\s+"""]),
}
