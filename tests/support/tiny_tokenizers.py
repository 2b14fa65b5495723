"""Tiny tokenizers whose ids are known by hand: a byte-level one (T0), a SentencePiece-style one (T1), as folders and as GGUF."""
from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

from uaii.frontend.checkpoint import TokenizerFiles
from uaii.frontend.tokenizer import parts
from uaii.frontend.tokenizer.text import Tokenizer

DATA = Path(__file__).parents[1] / "data" / "tokenizer"
SPECIAL = ["<|pad|>", "<|bos|>", "<|end|>", "<|user|>", "<|assistant|>"]
T0_MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("Ġw", "o"), ("r", "l"), ("Ġwo", "rl"),
             ("Ġworl", "d")]
T0_TOKENS = [*SPECIAL, *parts.BYTES, *(a + b for a, b in T0_MERGES)]
T1_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)),
             *"▁helowrd", "he", "ll", "hell", "hello", "▁w", "▁wo", "rl", "▁worl", "▁world", "▁h", "▁hello", "wo", "worl",
             "world"]
T1_MERGES = [tuple(m.split()) for m in ("h e", "l l", "he ll", "hell o", "▁ hello", "▁ w", "▁w o", "r l", "▁wo rl", "▁worl d",
                                        "w o", "wo rl", "worl d")]


def t0(*, bos: bool = False, flags: dict[str, Any] | None = None, normalizer: Any = None) -> dict[str, Any]:
    """T0: ids 0-4 special, 5+b byte b, then nine merges; "hello world" is [264, 269]."""
    vocab = {token: i for i, token in enumerate(T0_TOKENS)}
    added = [parts.added_token(i, token, special=True) | (flags or {}) for i, token in enumerate(SPECIAL)]
    byte_level = parts.byte_level() | {"use_regex": True}
    return json.loads(parts.document(parts.bpe(vocab, T0_MERGES), added=added, normalizer=normalizer,
                                     pre_tokenizer=byte_level, decoder=byte_level,
                                     post_processor=parts.around(("<|bos|>", 1), None) if bos else None))


def t1(scheme: str) -> dict[str, Any]:
    """T1: byte fallback at 3+b; `scheme` is legacy (a Prepend normalizer) or a Metaspace scheme."""
    vocab = {token: i for i, token in enumerate(T1_TOKENS)}
    added = [parts.added_token(i, token, special=True) for i, token in enumerate(T1_TOKENS[:3])]
    steps = [{"type": "Prepend", "prepend": "▁"}, parts.replace(" ", "▁")]
    return json.loads(parts.document(parts.bpe(vocab, T1_MERGES, unk="<unk>", byte_fallback=True), added=added,
                                     normalizer=parts.sequence("normalizers", steps) if scheme == "legacy" else None,
                                     pre_tokenizer=None if scheme == "legacy" else parts.metaspace(scheme),
                                     post_processor=None, decoder=parts.spaced_decoder(strip=True)))


def tokenizer(spec: dict[str, Any]) -> Tokenizer:
    """The run-time object for a tokenizer.json given as a dict."""
    return Tokenizer(TokenizerFiles(source="tiny", tokenizer_json=json.dumps(spec), config={}))


def t0_gguf(**keys: Any) -> dict[str, Any]:
    """T0 as GGUF metadata; `keys` are tokenizer.ggml keys, None takes one away."""
    return gguf({"model": "gpt2", "tokens": list(T0_TOKENS), "token_type": [3] * 5 + [1] * (len(T0_TOKENS) - 5),
                 "merges": [" ".join(m) for m in T0_MERGES], "bos_token_id": 1, "eos_token_id": 2, "pre": "gpt-2"} | keys)


def t1_gguf(**keys: Any) -> dict[str, Any]:
    """T1 as GGUF metadata, its merges told by scores: a token that is built earlier scores higher."""
    order = {a + b: -float(i + 1) for i, (a, b) in reversed(list(enumerate(T1_MERGES)))}
    return gguf({"model": "llama", "tokens": list(T1_TOKENS), "token_type": [2, 3, 3] + [6] * 256 + [1] * (len(T1_TOKENS) - 259),
                 "scores": [order.get(token, -1000.0) for token in T1_TOKENS], "bos_token_id": 1, "eos_token_id": 2} | keys)


def gguf(keys: dict[str, Any]) -> dict[str, Any]:
    """GGUF metadata from tokenizer.ggml keys; those that are None stay away, those with a dot are whole names."""
    return {name if "." in name else f"tokenizer.ggml.{name}": value for name, value in keys.items() if value is not None}


def write_folder(folder: Path, **files: Any) -> Path:
    """A folder of text files: `tokenizer_json={...}` becomes tokenizer.json, strings and bytes go in as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        path = folder / ".".join(name.rsplit("_", 1))
        path.write_bytes(value if isinstance(value, bytes) else
                         (value if isinstance(value, str) else json.dumps(value)).encode())
    return folder


def packed(name: str) -> bytes:
    """A data file that is committed compressed."""
    return lzma.decompress((DATA / f"{name}.xz").read_bytes())


def mistral_gguf() -> dict[str, Any]:
    """The vocabulary of Mistral 7B v0.1 as llama.cpp's converter writes it: SentencePiece's texts, scores and types."""
    from sentencepiece import sentencepiece_model_pb2
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(packed("mistral-7b-v0.1.tokenizer.model"))
    return gguf({"model": "llama", "tokens": [p.piece for p in proto.pieces], "scores": [p.score for p in proto.pieces],
                 "token_type": [p.type for p in proto.pieces], "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0})
