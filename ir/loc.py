"""Where a thing came from: a small tree whose leaves are the user's own files."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Key:
    """A metadata entry of the checkpoint: a config.json key or a GGUF key; `value` is JSON text or "absent"."""

    file: str
    path: str
    value: str


@dataclass(frozen=True)
class Stored:
    """A tensor of the checkpoint."""

    file: str
    name: str


@dataclass(frozen=True)
class Site:
    """The source line that built an op, and the module path it stands at, e.g. layers.0/attn."""

    path: str
    file: str
    line: int


@dataclass(frozen=True)
class File:
    """A place in one of the user's files; `at` is a line, a byte offset or a field, empty for the whole file."""

    file: str
    at: str = ""


@dataclass(frozen=True)
class By:
    """Made by a pass from other things; `why` is the rule's own sentence."""

    pass_: str
    why: str
    of: tuple[Loc, ...]


@dataclass(frozen=True)
class All:
    """Several origins at once."""

    of: tuple[Loc, ...]


Loc = Key | Stored | Site | File | By | All
Leaf = Key | Stored | Site | File


def join(*locs: Loc) -> Loc:
    """The origins together, each once; the origin itself when there is one."""
    flat: dict[Loc, None] = {}
    for loc in locs:
        flat |= dict.fromkeys(loc.of if isinstance(loc, All) else (loc,))
    return next(iter(flat)) if len(flat) == 1 else All(tuple(flat))


def leaves(loc: Loc) -> Iterator[Leaf]:
    """Every leaf, left to right; repeats are kept."""
    if isinstance(loc, By | All):
        for part in loc.of:
            yield from leaves(part)
    else:
        yield loc


def site(loc: Loc | None) -> str:
    """The module path an op stands at, e.g. layers.0/attn/q; empty when no leaf says."""
    return next((x.path for x in leaves(loc) if isinstance(x, Site)), "") if loc is not None else ""


def passes(loc: Loc | None) -> list[str]:
    """The passes that had a hand in it, oldest first."""
    match loc:
        case By(name, _, of):
            return list(dict.fromkeys([x for part in of for x in passes(part)] + [name]))
        case All(of):
            return list(dict.fromkeys(x for part in of for x in passes(part)))
        case _:
            return []


def show_leaf(leaf: Leaf) -> str:
    """One line for a person."""
    match leaf:
        case Key(file, path, value):
            return f"{file}: {path} = {value}"
        case Stored(file, name):
            return f"{file}: tensor {name}"
        case Site(path, file, line):
            return f"{file}:{line} at {path or 'the model'}"
        case File(file, at):
            return f"{file}: {at}" if at else file
