"""Makes tests/data/tokenizer/ranked.json.xz: the first ranks of two real vocabularies, and the references' ids of the texts.

Needs tiktoken and mistral_common, which the product does not. Run from the repository root, with the files of
mistral_common 1.13.1 and dashscope 2.0.2:
PYTHONPATH=.:tests/support python tests/goldens/tiktoken_ids.py tekken_240718.json qwen.tiktoken
"""
from __future__ import annotations

import base64
import json
import lzma
import sys
import tempfile
import unicodedata
from pathlib import Path
from typing import Any

import tiktoken
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from ranked_cases import KIMI_SPECIAL, OUT, PATTERNS, QWEN_SPECIAL, TEXTS

COUNT = 6000


def tekken(path: Path) -> tuple[dict[str, Any], list[list[int]]]:
    spec = json.loads(path.read_text("utf-8"))
    spec["vocab"] = spec["vocab"][:COUNT]
    spec["config"] |= {"num_vocab_tokens": COUNT, "default_vocab_size": COUNT + spec["config"]["default_num_special_tokens"]}
    with tempfile.TemporaryDirectory() as temp:
        cut = Path(temp) / "tekken.json"
        cut.write_text(json.dumps(spec), "utf-8")
        judge = Tekkenizer.from_file(cut)
    return spec, [judge.encode(text, bos=False, eos=False) for text in TEXTS]


def ranked(ranks: dict[bytes, int], pattern: str, special: list[str], nfc: bool) -> list[list[int]]:
    judge = tiktoken.Encoding("cut", pat_str=pattern, mergeable_ranks=ranks,
                              special_tokens={text: len(ranks) + i for i, text in enumerate(special)})
    return [judge.encode(unicodedata.normalize("NFC", text) if nfc else text, allowed_special="all") for text in TEXTS]


def main() -> None:
    spec, mistral = tekken(Path(sys.argv[1]))
    lines = Path(sys.argv[2]).read_text("ascii").splitlines()[:COUNT]
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(str.split, lines)}
    spec["vocab"] = [entry["token_bytes"] for entry in spec["vocab"]]
    ids = {"tekken": mistral, "qwen": ranked(ranks, PATTERNS["qwen"], QWEN_SPECIAL, nfc=True),
           "llama3": ranked(ranks, PATTERNS["llama3"], [], nfc=False),
           "kimi": ranked(ranks, PATTERNS["kimi"], KIMI_SPECIAL, nfc=False)}
    made = json.dumps({"tekken": spec, "qwen": lines, "ids": ids}, ensure_ascii=True, separators=(",", ":"))
    OUT.write_bytes(lzma.compress(made.encode(), preset=9))


if __name__ == "__main__":
    main()
