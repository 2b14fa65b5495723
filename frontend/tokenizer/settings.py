"""What a folder says beside its vocabulary: special tokens, added tokens, flags and chat templates."""
from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uaii.frontend.blob import refuse_placeholder
from uaii.ir.diag import Malformed
from uaii.ir.loc import File

ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass
class Settings:
    """`config` is tokenizer_config.json without templates; `special` the text of each role; `added` AddedToken fields by id."""

    folder: Path
    config: dict[str, Any]
    special: dict[str, str]
    added: dict[int, dict[str, Any]]
    template: str | None = None
    templates: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """tokenizer_class without the Fast suffix, empty when absent."""
        return str(self.config.get("tokenizer_class") or "").removesuffix("Fast")


def read_bytes(path: Path) -> bytes:
    """The bytes of a file. Raises Malformed K510 (a Git LFS pointer, a web page, zeros), K512 when it cannot be read."""
    try:
        raw = path.read_bytes()
    except OSError as err:
        raise Malformed("K512", f"{path.name} cannot be read: {err.strerror}", File(str(path))) from None
    if raw:
        refuse_placeholder("K510", path, raw[:512], len(raw))
    return raw


def read_text(path: Path) -> str:
    """A text file. Raises Malformed K510, K512 when it is not UTF-8 or cannot be read."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as err:
        raise Malformed("K512", f"{path.name} is not UTF-8 text (byte {err.start})", File(str(path))) from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, empty when the file is absent. Raises Malformed K510 and K512."""
    if not path.exists():
        return {}
    text = read_text(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise Malformed("K512", f"{path.name} is not JSON: {err}", File(str(path)),
                        hint="restore the file from its source") from None
    if not isinstance(value, dict):
        raise Malformed("K512", f"{path.name} must hold a JSON object", File(str(path)))
    return value


def read_settings(folder: Path) -> Settings:
    """Reads tokenizer_config.json, special_tokens_map.json, added_tokens.json and the template files of a folder.

    chat_template.jinja wins over tokenizer_config.json, as in transformers. Raises Malformed K510 and K512.
    """
    config = read_json(folder / "tokenizer_config.json")
    mapped = read_json(folder / "special_tokens_map.json")
    special = {role: text for role in ROLES
               if (text := _content(config[role] if role in config else mapped.get(role))) is not None}
    added = {int(i): {"content": i_content, "special": False} for i_content, i in
             read_json(folder / "added_tokens.json").items() if isinstance(i, int)}
    for i, token in (config.get("added_tokens_decoder") or {}).items():
        if isinstance(token, dict) and str(i).isdigit() and isinstance(token.get("content"), str):
            added[int(i)] = token
    said = Settings(folder, {k: v for k, v in config.items() if k not in ("chat_template", "auto_map")}, special, added)
    if "auto_map" in config:
        said.notes.append("tokenizer_config.json names Python code (auto_map): it is not run")
    _read_templates(said, config.get("chat_template"))
    return said


def _content(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _read_templates(said: Settings, inline: Any) -> None:
    match inline:
        case str():
            said.template = inline
        case [*entries]:
            said.templates = {str(e["name"]): str(e["template"]) for e in entries
                              if isinstance(e, dict) and {"name", "template"} <= e.keys()}
            said.template = said.templates.pop("default", None)
    path = said.folder / "chat_template.jinja"
    if path.exists():
        text = read_text(path)
        if said.template is not None and said.template != text:
            said.notes.append("chat template: chat_template.jinja is used; tokenizer_config.json holds a different one")
        said.template = text
    for path in sorted(said.folder.glob("additional_chat_templates/*.jinja")):
        said.templates[path.stem] = read_text(path)
    if said.template is not None and not said.template.strip():
        said.template = None
        said.notes.append("the chat template is empty: not used")
