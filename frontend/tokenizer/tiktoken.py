"""tiktoken's rank files (qwen.tiktoken, tiktoken.model, Llama 3's tokenizer.model) as a tokenizer.json.

Such a file holds ranks alone: how text is cut and what the control tokens are is in the Python code of a tokenizer class.
Those that are known are in RULES; any other file is refused.
"""
from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uaii.frontend.tokenizer import parts, ranks
from uaii.frontend.tokenizer.settings import Settings, read_bytes
from uaii.ir.diag import Diagnostic, Malformed
from uaii.ir.loc import File

LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")
LLAMA3_FILE = "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55"
KIMI_CODE = (r"[\p{Han}]+", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}")
Refuse = Callable[[str], Diagnostic]


@dataclass(frozen=True)
class Rule:
    """What a tokenizer class adds to its ranks: the pattern, NFC before it, control tokens behind the ranks, roles, BOS."""

    name: str
    pattern: str
    special: tuple[str, ...]
    roles: Mapping[str, str]
    nfc: bool = False
    bos: bool = False


def reserved(names: Mapping[int, str], count: int, filler: str) -> tuple[str, ...]:
    """`count` control tokens; those without a name go by the filler, which counts them among themselves."""
    rest = iter(range(count))
    return tuple(names[i] if i in names else filler.format(next(rest)) for i in range(count))


LLAMA3_NAMES = {0: "<|begin_of_text|>", 1: "<|end_of_text|>", 6: "<|start_header_id|>", 7: "<|end_header_id|>", 9: "<|eot_id|>"}
LLAMA31_NAMES = LLAMA3_NAMES | {4: "<|finetune_right_pad_id|>", 8: "<|eom_id|>", 10: "<|python_tag|>"}
LLAMA3_ROLES = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
QWEN = Rule("QWenTokenizer", ranks.QWEN, ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))),
            {"eos_token": "<|endoftext|>"}, nfc=True)
KIMI = Rule("TikTokenTokenizer (Kimi, Moonlight)", ranks.KIMI, (), {"bos_token": "[BOS]", "eos_token": "[EOS]"})
LLAMA3 = Rule("Llama 3", ranks.LLAMA3, reserved(LLAMA3_NAMES, 256, "<|reserved_special_token_{}|>"), LLAMA3_ROLES, bos=True)
LLAMA31 = Rule("Llama 3.1", ranks.LLAMA3, reserved(LLAMA31_NAMES, 256, "<|reserved_special_token_{}|>"), LLAMA3_ROLES, bos=True)


def is_tiktoken(raw: bytes) -> bool:
    """Whether a tokenizer.model holds tiktoken's ranks: lines of base64 and a number. SentencePiece's are a protobuf."""
    return LINE.match(raw) is not None


def from_tiktoken(said: Settings, path: Path, refuse: Refuse, config: Mapping[str, Any]) -> str:
    """The tokenizer.json of a rank file, ids as those of the tokenizer class it belongs to.

    `config` is config.json; `refuse` makes the error for what cannot be converted exactly. Raises Malformed K510 (LFS
    pointer) and K512 (not such a file) too.
    """
    raw = read_bytes(path)
    rule = _rule(said, path, raw, refuse, config)
    found = _ranks(path, raw)
    special = _special(said, rule, len(found), refuse)
    if clash := {ranks.symbols(token) for token in found} & set(special.values()):
        raise refuse(f"{sorted(clash)[0]!r} is both a control token and an ordinary one")
    for role, text in rule.roles.items():
        said.special.setdefault(role, text)
    said.config |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    bos = said.special.get("bos_token")
    ids = {text: i for i, text in special.items()}
    front = (bos, ids[bos]) if bos in ids and said.config.get("add_bos_token", rule.bos) is True else None
    said.notes.append(f"tokenizer: {path.name}, {len(found)} ranks as {rule.name} uses them")
    added = [parts.added_token(i, text, special=said.added.get(i, {}).get("special") is not False)
             for i, text in special.items()]
    return ranks.document(ranks.model(found), rule.pattern, added=added, post=parts.around(front, None), nfc=rule.nfc)


def _ranks(path: Path, raw: bytes) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for number, line in enumerate(raw.splitlines(), 1):
        try:
            text, rank = line.split() if line.strip() else (b"", b"")
            token = base64.b64decode(text, validate=True)
            found |= {token: int(rank)} if token else {}
        except (ValueError, binascii.Error):
            raise Malformed("K512", f"{path.name} found but its line {number} is not a token in base64 and a rank",
                            File(str(path)), hint="restore the file from its source") from None
    if sorted(found.values()) != list(range(len(found))) or any(bytes([b]) not in found for b in range(256)):
        raise Malformed("K512", f"{path.name} found but its {len(found)} ranks are not numbered from 0, or a byte has none",
                        File(str(path)), hint="restore the file from its source")
    return found


def _rule(said: Settings, path: Path, raw: bytes, refuse: Refuse, config: Mapping[str, Any]) -> Rule:
    if hashlib.sha256(raw).hexdigest() == LLAMA3_FILE:
        scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
        return LLAMA31 if "llama3" in (scaling.get("rope_type"), scaling.get("type")) else LLAMA3
    if said.kind == "QWenTokenizer" or (not said.kind and path.name == "qwen.tiktoken"):
        return QWEN
    if said.kind == "TikTokenTokenizer":
        for code in sorted(said.folder.glob("tokenization_*.py")):
            text = code.read_text("utf-8", "replace")
            if "class TikTokenTokenizer" in text and not all(piece in text for piece in KIMI_CODE):
                raise refuse(f"{code.name} cuts text in a way that uaii does not know")
        return KIMI
    raise refuse(f"it holds the tiktoken ranks of {said.kind or 'an unnamed tokenizer class'}, and only the class's own code "
                 "says how it cuts text")


def _special(said: Settings, rule: Rule, first: int, refuse: Refuse) -> dict[int, str]:
    """Control tokens by id, from `first` on: the rule's, under the names that tokenizer_config.json gives them."""
    made = {first + i: text for i, text in enumerate(rule.special)}
    if rule is KIMI:
        made = {i: f"<|reserved_token_{i}|>" for i in range(first, first + 256)}
    for i, token in said.added.items():
        if i not in made:
            raise refuse(f"added token {token['content']!r} has id {i}, outside {first}..{first + len(made) - 1}")
        made[i] = token["content"]
    if len(set(made.values())) != len(made):
        raise refuse("two of its control tokens have one text")
    return made
