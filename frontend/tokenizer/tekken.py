"""tekken.json (Mistral's tokenizer file) as a tokenizer.json."""
from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from uaii.frontend.tokenizer import parts, ranks
from uaii.frontend.tokenizer.settings import Settings, read_json
from uaii.ir.diag import Malformed, Unsupported
from uaii.ir.loc import File

NAME = "tekken.json"
# What files up to version 7 leave out (mistral_common 1.13, Tekkenizer.DEPRECATED_SPECIAL_TOKENS).
SPECIAL = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
           "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
           "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]")
ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def from_tekken(said: Settings) -> str:
    """The tokenizer.json of the folder's tekken.json: ids as mistral_common's, `<s>` in front.

    mistral_common never reads a control token in a text; here that is `parse_special=False`. Raises Malformed K512 for a file
    that is not what it should be, Unsupported K514 for one that cannot be converted exactly.
    """
    spec = read_json(said.folder / NAME)
    config = spec.get("config")
    if not isinstance(config, dict) or not isinstance(spec.get("vocab"), list):
        raise _broken(said, "it holds no vocabulary with its configuration")
    if config.get("pattern") != ranks.TEKKEN:
        raise refused(said, "its pattern is not one that uaii is known to cut as mistral_common does")
    special = _special(said, spec, config)
    size = config.get("default_vocab_size")
    if type(size) is not int or not 256 <= size - len(special) <= len(spec["vocab"]):
        raise _broken(said, f"default_vocab_size {size!r} does not fit its {len(spec['vocab'])} tokens")
    found = _ranks(said, spec["vocab"][:size - len(special)])
    if clash := {ranks.symbols(token) for token in found} & set(special):
        raise refused(said, f"{sorted(clash)[0]!r} is both a control token and an ordinary one")
    added = [parts.added_token(i, text, special=True) for i, text in enumerate(special)]
    said.special |= {role: text for role, text in ROLES.items() if role not in said.special and text in special}
    said.config |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    front = "<s>" if said.config.get("add_bos_token") is not False and "<s>" in special else None
    said.notes.append(f"tokenizer: {NAME}, {len(found)} ranks behind {len(special)} control tokens")
    return ranks.document(ranks.model(found, len(special)), ranks.TEKKEN, added=added,
                          post=parts.around((front, special.index(front)) if front else None, None))


def refused(said: Settings, what: str, name: str = NAME) -> Unsupported:
    """The refusal of a tokenizer file that cannot be converted exactly."""
    return Unsupported("K514", f"{name} found but {what}", File(str(said.folder / name)),
                       why="a conversion that is nearly right gives other tokens in silence",
                       hint="add a tokenizer.json to the folder (transformers saves one)")


def _broken(said: Settings, what: str) -> Malformed:
    return Malformed("K512", f"{NAME} found but {what}", File(str(said.folder / NAME)), hint="restore the file from its source")


def _special(said: Settings, spec: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """The text of each control token by its id: those that are named, and fillers up to the stated number."""
    count, version = config.get("default_num_special_tokens"), str(config.get("version", ""))
    entries = spec.get("special_tokens")
    if entries is None:
        if version not in ("v1", "v2", "v3", "v7"):
            raise _broken(said, f"it lists no special_tokens, which version {version!r} needs")
        entries = [{"rank": i, "token_str": text} for i, text in enumerate(SPECIAL)]
    texts = [entry.get("token_str") if isinstance(entry, dict) and entry.get("rank") == i else None
             for i, entry in enumerate(entries if isinstance(entries, list) else [None])]
    if type(count) is not int or len(texts) > count or not all(isinstance(text, str) and text for text in texts):
        raise _broken(said, f"special_tokens are not numbered from 0 within {count!r}")
    named = [str(text) for text in texts] + [f"<SPECIAL_{i}>" for i in range(len(texts), count)]
    if len(set(named)) != count:
        raise _broken(said, "two special_tokens have one text")
    return named


def _ranks(said: Settings, vocab: list[Any]) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for i, entry in enumerate(vocab):
        try:
            token = base64.b64decode(entry["token_bytes"], validate=True)
        except (KeyError, TypeError, ValueError, binascii.Error):
            token = b""
        if not token or token in found or entry.get("rank") != i or (i < 256 and token != bytes([i])):
            raise _broken(said, f"token {i} of its vocabulary is not as it should be")
        found[token] = i
    return found
