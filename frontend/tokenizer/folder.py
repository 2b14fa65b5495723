"""The tokenizer of a Hugging Face folder, as a tokenizer.json."""
from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from uaii.frontend.checkpoint import TokenizerFiles
from uaii.frontend.tokenizer import stops
from uaii.frontend.tokenizer.placing import misplaced, placed
from uaii.frontend.tokenizer.settings import Settings, read_json, read_settings, read_text
from uaii.frontend.tokenizer.text import library_tokenizer
from uaii.ir.diag import Malformed, Unsupported
from uaii.ir.loc import File

OTHER = ("spiece.model", "sentencepiece.bpe.model")


def from_folder(path: Path, config: Mapping[str, Any], generation: Mapping[str, Any] | None) -> TokenizerFiles:
    """The tokenizer of a folder: tokenizer.json as it is, or made from tokenizer.model (SentencePiece or tiktoken, by its
    content), vocab.json + merges.txt, tekken.json, tiktoken.model or a .tiktoken file, whichever is found first.

    `config` is config.json, `generation` generation_config.json (None or empty when absent). Raises Malformed K506 (no
    tokenizer), K507 (it does not load), K510 (LFS pointer), K511 (stop id outside the vocabulary), K512 (not JSON), Unsupported
    K506 (tokenizer class), K508 (Unigram tokenizer.json), K509 (tokenizer.model), K514 (tekken.json and tiktoken files).
    """
    said = read_settings(path)
    text = _tokenizer_json(said, config)
    return _files(said, text, config, generation)


def from_artifact(path: Path) -> TokenizerFiles:
    """The tokenizer that an artifact folder ships. Raises Malformed K506, K507, K510, K512."""
    said = read_settings(path)
    if not (path / "tokenizer.json").is_file():
        raise _none(path)
    return _files(said, read_text(path / "tokenizer.json"), {}, read_json(path / "generation_config.json"))


def _tokenizer_json(said: Settings, config: Mapping[str, Any]) -> str:
    from uaii.frontend.tokenizer import tekken, tiktoken
    from uaii.frontend.tokenizer.sentencepiece_model import from_sentencepiece, refused
    from uaii.frontend.tokenizer.vocab_merges import from_vocab_merges
    folder, has_model = said.folder, (said.folder / "tokenizer.model").is_file()
    if (folder / "tokenizer.json").is_file():
        text = read_text(folder / "tokenizer.json")
        kind = _kind(text, folder / "tokenizer.json")
        if kind != "Unigram":
            said.notes.append(f"tokenizer: tokenizer.json ({kind}), as it is")
            return text
        if not has_model:
            raise Unsupported("K508", "Unigram tokenizer.json is not loaded. Use tokenizer.model (SentencePiece) or a BPE "
                              "tokenizer.json", File(str(folder / "tokenizer.json")))
        said.notes.append("tokenizer: tokenizer.model; tokenizer.json beside it is Unigram")
        return from_sentencepiece(said)
    if has_model and not (folder / "merges.txt").is_file():
        path = folder / "tokenizer.model"
        if tiktoken.is_tiktoken(path.read_bytes()):
            return tiktoken.from_tiktoken(said, path, partial(refused, said), config)
        said.notes.append("tokenizer: tokenizer.model (SentencePiece)")
        return from_sentencepiece(said)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        said.notes.append("tokenizer: vocab.json and merges.txt")
        return from_vocab_merges(said, config)
    if (folder / tekken.NAME).is_file():
        return tekken.from_tekken(said)
    for path in (folder / "tiktoken.model", *sorted(folder.glob("*.tiktoken"))):
        if path.is_file():
            return tiktoken.from_tiktoken(said, path, partial(tekken.refused, said, name=path.name), config)
    raise _none(folder)


def _none(folder: Path) -> Malformed:
    found = [name for name in OTHER if (folder / name).exists()]
    hint = f"{', '.join(found)} is there, which uaii does not read yet: save the tokenizer as " \
           "tokenizer.json; " if found else ""
    return Malformed("K506", f"no HF tokenizer found in {folder} (need tokenizer.json, vocab.json+merges.txt, or "
                     "tokenizer.model)", File(str(folder)), hint=hint + "token ids can be given without a tokenizer")


def _kind(text: str, path: Path) -> str:
    try:
        spec = json.loads(text)
    except ValueError as err:
        raise Malformed("K507", f"tokenizer.json is not JSON: {err}", File(str(path))) from None
    model = spec.get("model") if isinstance(spec, dict) else None
    if not isinstance(model, dict) or "vocab" not in model:
        raise Malformed("K507", "tokenizer.json holds no model with a vocabulary", File(str(path)),
                        hint="restore the file from its source")
    kind = model.get("type") or ("Unigram" if isinstance(model["vocab"], list) else "BPE")
    if kind == "BPE" and len(model["vocab"]) > 256 and not model.get("merges"):
        raise Malformed("K504", f"the vocabulary of {len(model['vocab'])} tokens comes with 0 merges", File(str(path)),
                        why="BPE without merges gives one token per character")
    return str(kind)


def _files(said: Settings, text: str, config: Mapping[str, Any], generation: Mapping[str, Any] | None) -> TokenizerFiles:
    file = str(said.folder / "tokenizer.json")
    made = library_tokenizer(text, file)
    if moved := misplaced(made, text):
        text = placed(text, moved, file)
        made = library_tokenizer(text, file)
        said.notes.append(f"{len(moved)} added tokens are not in tokenizer.json's vocabulary; they were put there, so that they "
                          f"keep their ids, e.g. {next(iter(moved))!r}")
    size = max(made.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    notes = said.notes
    ids = {role: made.token_to_id(token) for role, token in said.special.items()}
    notes += [f"{role} {token!r} is not in the vocabulary: not used"
              for role, token in said.special.items() if ids[role] is None]
    front, back = _ends(made)
    files = TokenizerFiles(source=said.folder.name, tokenizer_json=text, config=dict(said.config), template=said.template,
                           templates=said.templates, vocab_size=size, notes=notes)
    files.add_bos = bool(front)
    files.bos_id = front[0] if front else ids.get("bos_token")
    files.eos_id = ids.get("eos_token")
    limit = stops.rows(config, size)
    files.stop_ids = stops.stop_ids(config, generation, files.eos_id, limit, notes)
    files.pad_id = stops.pad_id(config, generation, ids.get("pad_token"), limit, notes)
    files.generation = {k: v for k, v in (generation or {}).items() if k not in ("eos_token_id", "transformers_version")}
    files.config.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    if files.config["tokenizer_class"] in ("TokenizersBackend", None):
        files.config["tokenizer_class"] = "PreTrainedTokenizerFast"
    files.config |= {role: token for role, token in said.special.items() if role not in files.config}
    notes.append(f"tokenizer.json adds {_listed(made, front)} in front and {_listed(made, back)} behind")
    _disagreements(said, made, text, bool(front), notes)
    return files


def _ends(made: Any) -> tuple[list[int], list[int]]:
    bare, full = (made.encode("a", add_special_tokens=add).ids for add in (False, True))
    at = next((i for i in range(len(full) - len(bare) + 1) if full[i:i + len(bare)] == bare), 0)
    return full[:at], full[at + len(bare):]


def _listed(made: Any, ids: list[int]) -> str:
    return ", ".join(f"{made.id_to_token(i)} ({i})" for i in ids) or "nothing"


def _disagreements(said: Settings, made: Any, text: str, adds: bool, notes: list[str]) -> None:
    flag = said.config.get("add_bos_token")
    if isinstance(flag, bool) and flag != adds:
        notes.append(f"WARNING: tokenizer_config.json says add_bos_token {str(flag).lower()} but tokenizer.json "
                     f"{'adds' if adds else 'does not add'} BOS: tokenizer.json is followed")
    spec = json.loads(text) if said.kind == "LlamaTokenizer" and (said.folder / "tokenizer.json").is_file() else {}
    if '"▁"' in json.dumps(spec.get("decoder"), ensure_ascii=False):
        has, wants = _scheme(spec), "never" if said.config.get("add_prefix_space") is False else "first"
        if has != wants:
            notes.append(f"WARNING: tokenizer.json puts ▁ in front: {has}; transformers' LlamaTokenizer with "
                         f"add_prefix_space {json.dumps(said.config.get('add_prefix_space'))} puts it: {wants}. "
                         "tokenizer.json is followed")
    known = set(made.get_vocab(with_added_tokens=True).values())
    lost = [token["content"] for i, token in said.added.items() if i not in known]
    if lost:
        notes.append(f"WARNING: {len(lost)} added tokens of tokenizer_config.json are not in tokenizer.json and not used, "
                     f"e.g. {lost[0]!r}")


def _scheme(spec: dict[str, Any]) -> str:
    shape = json.dumps([spec.get("normalizer"), spec.get("pre_tokenizer")])
    if '"Prepend"' in shape:
        return "always"
    return next((s for s in ("always", "first") if f'"prepend_scheme": "{s}"' in shape), "never")
