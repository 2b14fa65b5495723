"""The tokenizer inside a GGUF file, as a tokenizer.json."""
from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from uaii.frontend.checkpoint import TokenizerFiles
from uaii.frontend.tokenizer import gguf_bpe, gguf_spm, parts
from uaii.frontend.tokenizer.gguf_special import Specials, find_specials
from uaii.frontend.tokenizer.gguf_vocab import GGML, Kind, Vocab, key_of, read_vocab
from uaii.ir.diag import Malformed, Unsupported

TEMPLATE = "tokenizer.chat_template"
KINDS = {"llama": "SentencePiece BPE", "gpt2": "byte-level BPE", "gemma4": "BPE on raw text"}
OTHERS = {"bert": "WordPiece", "t5": "SentencePiece Unigram", "rwkv": "RWKV's trie", "plamo2": "PLaMo-2's table",
          "hybriddna": "DNA k-mers", "whitespace": "white-space words", "none": "no tokenizer", "no_vocab": "no tokenizer"}
# Names that llama.cpp's templates went by before files carried Jinja text.
LEGACY = re.compile(r"[a-z0-9_.-]{1,40}")
# Special tokens after which Phi-3's tokenizer leaves white space alone.
PHI3_KEEP = ("<unk>", "<s>", "<|endoftext|>")


def from_gguf(metadata: Mapping[str, Any], file: str) -> TokenizerFiles:
    """The tokenizer of a GGUF file, its ids equal to llama.cpp's for the file.

    `metadata` holds the key-values (strings decoded with surrogateescape, arrays as lists), `file` is the name that errors
    quote. Raises Unsupported K501 for a tokenizer kind and K502 for a pre-tokenizer that uaii does not know, Malformed K503
    (keys), K504 (merges), K505 (a text twice), K506 (no tokenizer). Where llama.cpp and the models' own tokenizers part, the
    latter are followed: of overlapping control tokens the leftmost matches, white space and letters are those of the current
    Unicode.
    Source: llama.cpp src/llama-vocab.cpp, commit 0c1e57098.
    """
    model = metadata.get(GGML + "model")
    if model is None:
        raise Malformed("K506", f"no tokenizer in {file}: it has no {GGML}model", key_of(file, metadata, GGML + "model"),
                        hint="prompt with token ids, or give a file with its vocabulary")
    if not isinstance(model, str):
        raise Malformed("K503", "the file names no tokenizer", key_of(file, metadata, GGML + "model"),
                        hint="prompt with token ids, or give a file with its vocabulary")
    if model not in KINDS:
        raise Unsupported("K501", f"tokenizer kind {model!r} ({OTHERS.get(model, 'unknown')}) is not supported",
                          key_of(file, metadata, GGML + "model"),
                          hint=f"supported: {', '.join(KINDS)}; a prompt of token ids needs no tokenizer")
    notes = [f"tokenizer: {KINDS[model]} from {GGML}model = {model}"]
    pre = gguf_bpe.pre_tokenizer(metadata, file, model, notes) if model != "llama" else None
    vocab = read_vocab(metadata, file)
    specials = find_specials(vocab, model)
    notes += [*vocab.notes, *specials.notes]
    files = TokenizerFiles(source=file, tokenizer_json="", config={}, notes=notes, vocab_size=len(vocab.tokens),
                           stop_ids=specials.stop)
    files.bos_id, files.eos_id = specials.ids.get("bos"), specials.ids.get("eos")
    files.pad_id = specials.ids.get("pad")
    files.add_bos, add_eos = _ends(vocab, specials, model, pre, notes)
    post = parts.around(_named(vocab, files.bos_id) if files.add_bos else None,
                        _named(vocab, files.eos_id) if add_eos else None)
    rstrip = _phi3(vocab, specials)
    if pre is None:
        files.tokenizer_json = gguf_spm.build(vocab, specials, post, rstrip, notes)
    else:
        files.tokenizer_json = gguf_bpe.build(vocab, specials, pre, post, rstrip, notes)
    files.config = _config(vocab, specials, files, add_eos)
    files.template, files.templates = _templates(metadata, notes)
    if suppressed := metadata.get(GGML + "suppress_tokens"):
        files.generation["suppress_tokens"] = [int(i) for i in suppressed if 0 <= int(i) < files.vocab_size]
    if not files.stop_ids:
        notes.append("WARNING: no token ends generation; only the length does")
    return files


def _ends(vocab: Vocab, specials: Specials, model: str, pre: Any, notes: list[str]) -> tuple[bool, bool]:
    default = model == "llama" or bool(pre and pre["add_bos"])
    add_bos = vocab.flag("add_bos_token", default)
    rule = f"{GGML}add_bos_token" if GGML + "add_bos_token" in vocab.metadata else "llama.cpp's default for this tokenizer"
    if pre and pre["split"] == "gemma4" and not add_bos:
        add_bos, rule = True, "llama.cpp's rule for Gemma 4, against the file"
    add_eos = vocab.flag("add_eos_token", False)
    if add_bos and "bos" not in specials.ids:
        notes.append(f"WARNING: BOS should be added ({rule}) but the file names no BOS token: none is added")
        add_bos = False
    else:
        notes.append(f"BOS is {'added' if add_bos else 'not added'}: {rule}")
    if add_eos and "eos" not in specials.ids:
        notes.append("WARNING: EOS should be added but the file names no EOS token: none is added")
    return add_bos, add_eos and "eos" in specials.ids


def _named(vocab: Vocab, id_: int | None) -> tuple[str, int] | None:
    return None if id_ is None else (vocab.tokens[id_], id_)


def _phi3(vocab: Vocab, specials: Specials) -> set[int]:
    name = str(vocab.metadata.get("general.name", "")).lower()
    if "phi-3" not in name and "phi3" not in name:
        return set()
    return {i for i in specials.control | specials.user | specials.by_text if vocab.tokens[i] not in PHI3_KEEP}


def _config(vocab: Vocab, specials: Specials, files: TokenizerFiles, add_eos: bool) -> dict[str, Any]:
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
                              "add_bos_token": files.add_bos, "add_eos_token": add_eos}
    named = {"bos_token": files.bos_id, "eos_token": files.eos_id, "pad_token": files.pad_id,
             "unk_token": specials.ids.get("unk")}
    return config | {role: vocab.tokens[i] for role, i in named.items()
                     if i is not None and (role != "unk_token" or vocab.types[i] != Kind.NORMAL)}


def _templates(metadata: Mapping[str, Any], notes: list[str]) -> tuple[str | None, dict[str, str]]:
    texts = {key[len(TEMPLATE) + 1:] or "default": value for key, value in metadata.items()
             if (key == TEMPLATE or key.startswith(TEMPLATE + ".")) and isinstance(value, str)}
    for name, text in list(texts.items()):
        if not text.strip() or LEGACY.fullmatch(text.strip()):
            notes.append(f"chat template {name!r} is " + (f"the old short name {text.strip()!r}, not a template: not used"
                                                          if text.strip() else "empty: not used"))
            del texts[name]
    return texts.pop("default", None), texts
