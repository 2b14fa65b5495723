"""The vocabulary of a family's configuration: each key, its legal values, and the account that must balance."""
from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from uaii.frontend.alibi import refuse_alibi
from uaii.frontend.checkpoint import Checkpoint
from uaii.frontend.fp8 import fp8_block
from uaii.frontend.per_layer import one_for_all
from uaii.ir import loc as L
from uaii.ir.diag import Diagnostic, Internal, Malformed, Unsupported
from uaii.ir.known import known

REQUIRED: Any = object()
SAME: Any = object()
Default = Any  # a value, REQUIRED, or a function of the Config read so far

# Keys that cannot change the result, whatever the family: why each is safe to leave unread.
INERT_HF: dict[str, str] = {
    "architectures": "names the family", "model_type": "names the family", "auto_map": "remote code, never executed",
    "torch_dtype": "storage; each tensor says its own", "dtype": "storage; each tensor says its own",
    "transformers_version": "bookkeeping", "_name_or_path": "bookkeeping", "use_cache": "run time",
    "cache_implementation": "run time", "initializer_range": "training", "attention_dropout": "training",
    "attn_pdrop": "training", "embd_pdrop": "training", "resid_pdrop": "training", "hidden_dropout": "training",
    "embd_dropout": "training", "resid_dropout": "training", "pretraining_tp": "slices the same product",
    "bos_token_id": "tokenizer", "eos_token_id": "generation", "pad_token_id": "tokenizer",
    "_attn_implementation": "run time", "_attn_implementation_autoset": "run time", "attn_implementation": "run time",
    "_flash_attn_2_enabled": "run time",
    "is_llama_config": "bookkeeping", "transformers.js_config": "another runtime's settings",
    "output_attentions": "run time", "output_hidden_states": "run time", "return_dict": "run time",
    "unsloth_version": "bookkeeping", "unsloth_fixed": "bookkeeping", "task_specific_params": "bookkeeping",
}
INERT_GGUF: dict[str, str] = {
    "general.architecture": "names the family", "general.alignment": "read by the file reader",
    "general.file_type": "informative; each tensor says its own type", "general.quantization_version": "block layouts are fixed",
    "vocab_size": "the embedding table's rows decide",
    "rope.scaling.finetuned": "how it was trained",
    "rope.scaling.yarn_beta_fast": "llama.cpp takes 32 whatever the file says",
    "rope.scaling.yarn_beta_slow": "llama.cpp takes 1 whatever the file says",
    "rope.scaling.yarn_ext_factor": "llama.cpp takes 1 whatever the file says",
    "rope.scaling.yarn_attn_factor": "llama.cpp computes it from the factor, whatever the file says",
}
INERT_GGUF_PREFIXES: dict[str, str] = {
    "general.": "bookkeeping", "tokenizer.": "read by the tokenizer", "split.": "read by the file reader",
    "quantize.": "how the file was made", "mradermacher.": "bookkeeping",
}


class Entry:
    """Something a Config class declares: it reads one or more raw keys and yields one value."""

    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def keys(self, fmt: str) -> tuple[str, ...]:
        """The raw keys it reads in a checkpoint of format `fmt`."""
        raise NotImplementedError

    def read(self, c: Config) -> Any:
        raise NotImplementedError


@dataclass
class Key(Entry):
    """One key: its Hugging Face names (the first present wins), its GGUF name, its kind, and what absence and null mean."""

    hf: tuple[str, ...]
    gguf: str | None
    kind: Kind
    default: Default
    gguf_default: Default
    null: Default
    one_of: tuple[Any, ...]

    def keys(self, fmt: str) -> tuple[str, ...]:
        return self.hf if fmt == "hf" else (self.gguf,) if self.gguf else ()

    def read(self, c: Config) -> Any:
        names = self.keys(c.fmt)
        said = [n for n in names if c.has(n)]
        name = said[0] if said else names[0] if names else None
        if differing := [n for n in said[1:] if c.raw(n) != c.raw(said[0])]:
            raise Malformed("F108", f"{said[0]}={c.raw(said[0])} and {differing[0]}={c.raw(differing[0])} are one setting",
                            L.join(c.at(said[0]), c.at(differing[0])), hint="remove the spelling that is wrong")
        if name is None or not said:
            default = self.gguf_default if c.fmt == "gguf" else self.default
            if default is REQUIRED:
                raise Malformed("F102", f"{c.file} lacks {name!r}", c.at(name or self.name),
                                hint="the model cannot be built without it: take the publisher's complete file")
            return known(self._given(default, c), c.at(name)) if name else self._given(default, c)
        value = c.raw(name)
        if value is None and self.null is not REQUIRED:
            return known(self._given(self.null, c), c.at(name))
        value = self.kind.check(value, name, c)
        if self.one_of and value not in self.one_of:
            legal = " or ".join(json.dumps(v) for v in self.one_of)
            raise Unsupported("F103", f"unsupported {name}={value}; {c.family} is built for {legal}", c.at(name))
        return known(value, c.at(name))

    @staticmethod
    def _given(default: Default, c: Config) -> Any:
        return default(c) if callable(default) else default


@dataclass(frozen=True)
class Kind:
    """What a key's value must be."""

    says: str
    fits: Callable[[Any], bool]
    make: Callable[[Any], Any] = lambda v: v

    def check(self, value: Any, name: str, c: Config) -> Any:
        if not self.fits(value):
            raise Malformed("F104", f"{name} must be {self.says}, is {json.dumps(value)[:80]}", c.at(name))
        return self.make(value)


def _integer(v: Any) -> bool:
    return isinstance(v, int) and not isinstance(v, bool)


def _real(v: Any) -> bool:
    return isinstance(v, int | float) and not isinstance(v, bool) and -1e12 < v < 1e12


SIZE = Kind("a whole number from 1 to 2^24", lambda v: _integer(v) and 0 < v <= 1 << 24)
LAYERS = Kind("a whole number from 1 to 1024", lambda v: _integer(v) and 0 < v <= 1024)
LENGTH = Kind("a whole number from 1 to 2^30", lambda v: _integer(v) and 0 < v <= 1 << 30)
COUNT = Kind("a whole number from 0 to 2^24", lambda v: _integer(v) and 0 <= v <= 1 << 24)
POSITIVE = Kind("a finite number above 0", lambda v: _real(v) and v > 0, float)
NUMBER = Kind("a finite number", _real, float)
FLAG = Kind("true or false", lambda v: isinstance(v, bool))
WORD = Kind("a string", lambda v: isinstance(v, str))


def key(hf: str | Iterable[str], gguf: str | None = None, kind: Kind = SIZE, *, default: Default = REQUIRED,
        gguf_default: Default = SAME, null: Default = REQUIRED, one_of: tuple[Any, ...] = ()) -> Any:
    """Declares a key. `gguf_default` is `default` unless given; a key without a GGUF name takes it there always.

    `null` is the meaning of an explicit null, an error unless given. Defaults may be functions of the Config.
    """
    names = (hf,) if isinstance(hf, str) else tuple(hf)
    return Key(names, gguf, kind, default, default if gguf_default is SAME else gguf_default, null, one_of)


def scalar_of(name: str) -> Callable[[Config], Any]:
    """A default that copies another entry."""
    return lambda c: getattr(c, name)


class Config:
    """Reads a checkpoint's metadata by the class's entries; every other key must be inert, with a reason, or accepted.

    Raises Malformed F102 (missing), F104 (not a legal value), Unsupported F101 (keys nobody reads), F103 (a value the
    family is not built for).
    """

    inert: ClassVar[Mapping[str, str]] = {}

    def __init__(self, family: str, ckpt: Checkpoint, accept: frozenset[str] = frozenset()) -> None:
        self._open(family, ckpt)
        refuse_alibi(self.file, self._meta)
        self.accepted = self._check_strangers(accept)
        for e in self._entries.values():
            setattr(self, e.name, e.read(self))
        self._used.clear()
        self.check()

    def _open(self, family: str, ckpt: Checkpoint) -> None:
        self._used: dict[str, list[str]] = {}
        self.fmt, self.file, self.family = ckpt.format, ckpt.config_file, family
        self._meta = dict(ckpt.metadata)
        self._prefix = f"{ckpt.metadata.get('general.architecture', '')}." if self.fmt == "gguf" else ""
        self._entries = _entries(type(self))

    @classmethod
    def peek(cls, family: str, ckpt: Checkpoint) -> Self:
        """What can be read, for a report and never for a graph: an entry that cannot is None, strangers are let pass."""
        c = cls.__new__(cls)
        c._open(family, ckpt)
        c.accepted = {}
        for e in c._entries.values():
            try:
                value = e.read(c)
            except (Diagnostic, ArithmeticError, LookupError, TypeError):  # its key, or one that its default takes
                value = None
            setattr(c, e.name, value)
        return c

    def check(self) -> None:
        """A family's own conditions between its entries, stated with `need`."""

    def context(self) -> int:
        """The longest sequence in tokens that the model is for; every family declares max_positions."""
        return int(getattr(self, "max_positions"))  # noqa: B009

    def need(self, fits: bool, name: str, says: str) -> None:
        """Raises Unsupported F103 about the raw key `name` unless it fits."""
        if not fits:
            raise Unsupported("F103", f"unsupported {name}={self.raw(name)}: {says}", self.at(name))

    @classmethod
    def declared(cls) -> Mapping[str, Entry]:
        """The entries of this configuration by our names."""
        return _entries(cls)

    def has(self, name: str) -> bool:
        return self._full(name) in self._meta

    def raw(self, name: str) -> Any:
        """The value as the file has it, None when absent; of a GGUF key that lists one for each layer, the one they share."""
        value = self._meta.get(self._full(name))
        return one_for_all(name, value, self.raw("block_count"), self.at(name)) if isinstance(value, list) else value

    def at(self, name: str) -> L.Key:
        """The origin of a key's value, or of its absence."""
        full = self._full(name)
        return L.Key(self.file, full, json.dumps(self._meta[full])[:200] if full in self._meta else "absent")

    def _full(self, name: str) -> str:
        dotted = name.startswith(("general.", "tokenizer.", "split."))
        return name if dotted or not self._prefix else self._prefix + name

    def _check_strangers(self, accept: frozenset[str]) -> dict[str, str]:
        claimed = {self._full(k) for e in self._entries.values() for k in e.keys(self.fmt)}
        strange = [k for k in self._meta if k not in claimed and self.inert_reason(k) is None]
        if refused := [k for k in strange if k not in accept]:
            where = L.join(*(L.Key(self.file, k, json.dumps(self._meta[k])[:200]) for k in refused))
            one = len(refused) == 1
            raise Unsupported(
                "F101", f"{self.family} does not account for {len(refused)} config key{'' if one else 's'}: "
                f"{', '.join(refused)}", where,
                why="a key nobody reads can change the model's meaning without a trace",
                hint=f"if {'it is' if one else 'they are'} known to be harmless: "
                + " ".join(f"--accept-key {k}" for k in refused) + "; it is recorded in the artifact")
        if unused := sorted(accept - set(strange)):
            raise Malformed("F105", f"--accept-key {unused[0]}: the checkpoint has no such unread key", L.File(self.file))
        return {k: json.dumps(self._meta[k]) for k in strange}

    def inert_reason(self, name: str) -> str | None:
        """Why a raw key cannot change the result, or None when it could."""
        short = name.removeprefix(self._prefix)
        if short in self.inert:
            return self.inert[short]
        if self.fmt == "hf":
            read = name == "quantization_config" and fp8_block(self._meta) is not None
            return "read with the weights" if read else INERT_HF.get(name)
        prefix = next((p for p in INERT_GGUF_PREFIXES if name.startswith(p)), None)
        return INERT_GGUF.get(short) or INERT_GGUF.get(name) or (INERT_GGUF_PREFIXES[prefix] if prefix else None)

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if not name.startswith("_") and name in super().__getattribute__("__dict__").get("_entries", {}):
            self._used.setdefault(name, []).append(_reader())
        return value

    def close(self) -> None:
        """Raises Internal F106 when an entry with a choice was declared and never used by the builder."""
        idle = [n for n, e in self._entries.items()
                if n not in self._used and not (isinstance(e, Key) and len(e.one_of) == 1) and e.keys(self.fmt)]
        if idle:
            raise Internal("F106", f"{self.family} declares {', '.join(idle)} and never uses it",
                           L.join(*(self.at(k) for n in idle for k in self._entries[n].keys(self.fmt))))

    def account(self) -> list[dict[str, Any]]:
        """One row per raw key: key, value, and how it was treated (used where, inert why, accepted)."""
        out: list[dict[str, Any]] = []
        by_key = {self._full(k): e for e in self._entries.values() for k in e.keys(self.fmt)}
        for name, value in self._meta.items():
            text = json.dumps(value, default=str)
            row = {"key": name, "value": text if len(text) <= 80 else text[:77] + "..."}
            if name in by_key:
                e = by_key[name]
                places = list(dict.fromkeys(self._used.get(e.name, [])))
                row |= {"use": "read", "by": ", ".join(places[:4]) or "checked against its only legal value"}
            elif name in self.accepted:
                row |= {"use": "accepted", "by": "--accept-key"}
            else:
                row |= {"use": "inert", "by": self.inert_reason(name) or ""}
            out.append(row)
        return out


def _entries(kind: type) -> dict[str, Entry]:
    """A class's entries, inherited first; a redefinition replaces one in its place, None drops it."""
    found: dict[str, Entry] = {}
    for klass in reversed(kind.__mro__):
        for name, value in vars(klass).items():
            if isinstance(value, Entry):
                found[name] = value
            elif value is None:
                found.pop(name, None)
    return found


def _reader() -> str:
    """The source line of the family or block that reads a key."""
    frame = sys._getframe(2)
    path = Path(frame.f_code.co_filename)
    return f"{path.parent.name}/{path.name}:{frame.f_lineno}"


def contradiction(error: Diagnostic, c: Config) -> Malformed:
    """A typing error inside a family is the checkpoint's: its sizes do not fit together."""
    return Malformed("F107", f"the sizes in {c.file} do not fit together: {error.says}", error.where or L.File(c.file),
                     notes=error.notes)
