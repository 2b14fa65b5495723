"""Ids and texts live against transformers' AutoTokenizer.

Set UAII_TOKENIZER_DIR to a folder of folders with tokenizer files, and each of those is tried too.
"""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import packed, write_folder
from tokenizer_texts import everyday

from uaii.compiler import Artifact
from uaii.frontend.gguf import Gguf
from uaii.frontend.tokenizer.folder import from_folder
from uaii.frontend.tokenizer.gguf import from_gguf
from uaii.frontend.tokenizer.sentencepiece_model import from_sentencepiece
from uaii.frontend.tokenizer.settings import read_settings
from uaii.frontend.tokenizer.text import Tokenizer, clean

OUTSIDE = sorted(p for p in Path(os.environ["UAII_TOKENIZER_DIR"]).iterdir() if p.is_dir()) \
    if "UAII_TOKENIZER_DIR" in os.environ else []


def gpt2(folder: Path) -> Path:
    """GPT-2's own files, out of a GGUF."""
    (folder / "gpt-2.gguf").write_bytes(packed("gpt-2.gguf"))
    model = json.loads(from_gguf(Gguf(folder / "gpt-2.gguf", inspect=True).metadata, "gpt-2").tokenizer_json)["model"]
    end = "<|endoftext|>"
    return write_folder(folder / "hf", vocab_json=model["vocab"], merges_txt="\n".join(map(" ".join, model["merges"])),
                        tokenizer_config_json={"tokenizer_class": "GPT2Tokenizer", "bos_token": end, "eos_token": end,
                                               "unk_token": end}, config_json={"model_type": "gpt2"})


def mistral(folder: Path) -> Path:
    """Mistral's tokenizer.model as a tokenizer.json, which both read as it is."""
    write_folder(folder, tokenizer_model=packed("mistral-7b-v0.1.tokenizer.model"))
    return write_folder(folder / "hf", tokenizer_json=from_sentencepiece(read_settings(folder)), tokenizer_config_json={
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})


def compare(folder: Path) -> None:
    from transformers import AutoTokenizer

    judge: Any = AutoTokenizer.from_pretrained(folder)
    tok = Tokenizer(from_folder(folder, {}, None))
    texts = everyday([text for id_, text in tok.added.items() if id_ in tok.special_ids][:12])
    assert len(texts) > 200
    for text in texts:
        for add in (True, False):
            ids = tok.encode(text, add_special=add)
            assert ids == judge(clean(text), add_special_tokens=add)["input_ids"], ascii(text)
        for skip in (True, False):
            whole, stream = tok.decode(ids, skip_special=skip), tok.stream(skip_special=skip)
            assert whole == judge.decode(ids, skip_special_tokens=skip), ascii(text)
            assert "".join(map(stream.feed, ids)) + stream.finish() == whole, ascii(text)


@pytest.mark.reference
@pytest.mark.parametrize("source", [gpt2, mistral, *OUTSIDE], ids=lambda x: x.name if isinstance(x, Path) else x.__name__)
def test_vocabularies(source: Any, tmp_path: Path) -> None:
    compare(source if isinstance(source, Path) else source(tmp_path))


@pytest.mark.reference
def test_a_real_artifact_s_tokenizer(smollm2_artifact: Artifact) -> None:
    compare(smollm2_artifact.folder)
