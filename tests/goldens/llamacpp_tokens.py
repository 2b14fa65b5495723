"""Makes tests/data/tokenizer/llamacpp.json.xz: token ids by llama.cpp (llama-cpp-python 0.3.36).

Run from the repository root with that package installed: PYTHONPATH=.:tests/support python tests/goldens/llamacpp_tokens.py
"""
from __future__ import annotations

import json
import lzma
import tempfile
from pathlib import Path
from typing import Any

import llama_cpp
from raw_gguf import gguf_bytes
from tiny_tokenizers import DATA, mistral_gguf, t0_gguf, t1_gguf
from tokenizer_texts import pair_vocabulary, texts

from uaii.frontend.tokenizer.gguf_bpe import pre_tokenizers

COUNT = 150
CONTROL = ["<s>Hello", "<s> Hello", "Hello<s>Hello", "Hello</s> Hello", "", "\n", " ", "  ", "▁Hello", " Hello"]
TINY = ["hello world", "<|bos|>hello", "hello<|end|> world", "x=12345; don't\n\n  if->y Café", "hello<|nope|>"]
TINY_SPM = ["hello", "<s>hello", "hello</s>world", "hello world", "", " ", "  hello", "▁hello", "<s> hello", "hé"]


def llama(metadata: dict[str, Any], samples: list[str], *, special: bool) -> list[list[int]]:
    kinds = {"tokens": "arr[str]", "merges": "arr[str]", "token_type": "arr[i32]", "scores": "arr[f32]", "model": "str",
             "pre": "str", "add_space_prefix": "bool", "add_bos_token": "bool"}
    pairs = [("general.architecture", "str", "llama"), ("llama.attention.layer_norm_rms_epsilon", "f32", 1e-5)]
    pairs += [(f"llama.{k}", "u32", 1) for k in ("context_length", "embedding_length", "block_count", "attention.head_count",
                                                "feed_forward_length")]
    pairs += [(k, kinds.get(k.rsplit(".", 1)[1], "u32"), v) for k, v in metadata.items()]
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        Path(file.name).write_bytes(gguf_bytes(pairs))
        model = llama_cpp.Llama(file.name, vocab_only=True, verbose=False)
        return [model.tokenize(text.encode(), add_bos=False, special=special) for text in samples]


def main() -> None:
    samples = texts("pre-tokenizers", COUNT)
    tokens, merges = pair_vocabulary(samples)
    table, ids, same = pre_tokenizers()["names"], {}, {}
    for name, entry in table.items():
        first = same.setdefault(entry["split"], name)
        if entry.get("byte_level", True) and first == name:
            ids[entry["split"]] = llama(t0_gguf(pre=name, tokens=tokens, merges=merges, token_type=[1] * len(tokens),
                                                bos_token_id=None, eos_token_id=None), samples, special=False)
    spm = texts("spm", COUNT) + CONTROL
    prefixed = {flag: llama(mistral_gguf() | {"tokenizer.ggml.add_space_prefix": flag == "true"}, spm, special=True)
                for flag in ("true", "false")}
    golden = {"splits": ids, "spm": prefixed, "spm_texts": spm,
              "tiny": {"texts": TINY, "ids": {pre: llama(t0_gguf(pre=pre), TINY, special=True) for pre in
                                                                ("gpt-2", "default", "llama-bpe", "qwen2")}},
              "tiny_spm": {"texts": TINY_SPM, "ids": {flag: llama(t1_gguf(add_space_prefix=value), TINY_SPM, special=True) for
                                                      flag, value in (("true", True), ("false", False), ("absent", None))}},
              "texts": samples}
    (DATA / "llamacpp.json.xz").write_bytes(lzma.compress(json.dumps(golden, ensure_ascii=False).encode(), preset=9))


if __name__ == "__main__":
    main()
