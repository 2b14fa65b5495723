"""The lines of a batch: what one may say, which are answered already, and where the answers go."""
from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from uaii.ir.diag import Usage
from uaii.ir.loc import File

NUMBER = (int, float)
PROMPTS: dict[str, tuple[type, ...]] = {"prompt": (str,), "messages": (list,), "token_ids": (list,)}
SAMPLING: dict[str, tuple[type, ...]] = {
    "temperature": NUMBER, "top_k": (int,), "top_p": NUMBER, "min_p": NUMBER, "repeat_penalty": NUMBER,
    "presence_penalty": NUMBER, "frequency_penalty": NUMBER, "seed": (int,), "greedy": (bool,)}
KINDS = PROMPTS | SAMPLING | {"id": (str, int), "max_new_tokens": (int,), "stop": (str, list), "ignore_eos": (bool,),
                              "tools": (list,)}
HEAD = b'{"id": '  # how each output line begins
DRAWN = ("temperature", "top_k", "top_p", "min_p", "seed")


@dataclass
class Job:
    """One line of the input: its number from 1, what identifies it in the output, and what came of it."""

    line: int
    raw: bytes
    said: dict[str, Any] = field(default_factory=dict)
    made: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def head(self) -> dict[str, Any]:
        """`id` is the line's own, or its number; `input` tells whether the line is still the one that was answered."""
        return {"id": self.said.get("id", self.line), "line": self.line, "input": digest(self.raw)}

    @property
    def record(self) -> dict[str, Any]:
        """The line of the output."""
        return self.head | self.made | ({"notes": self.notes} if self.notes else {})


def parsed(raw: bytes) -> dict[str, Any]:
    """A line's object without what is null. Raises Usage U050."""
    try:
        said = json.loads(raw)
    except (ValueError, RecursionError) as err:
        raise Usage("U050", f"the line is not JSON: {err}") from None
    if not isinstance(said, dict):
        raise Usage("U050", "the line is not an object")
    said = {key: value for key, value in said.items() if value is not None}
    if strange := sorted(said.keys() - KINDS.keys()):
        raise Usage("U050", f"nobody reads {', '.join(strange)}", hint=f"a line may have {', '.join(KINDS)}")
    if len([key for key in PROMPTS if key in said]) != 1:
        raise Usage("U050", f"the line needs one of {', '.join(PROMPTS)}")
    for key, value in said.items():
        if not isinstance(value, KINDS[key]) or (isinstance(value, bool) and bool not in KINDS[key]):
            raise Usage("U050", f"{key} must be {' or '.join(kind.__name__ for kind in KINDS[key])}, not {value!r}")
    if not all(type(i) is int for i in said.get("token_ids", ())):
        raise Usage("U050", "token_ids must be whole numbers")
    return said


def digest(raw: bytes) -> str:
    """What identifies an input line in the output."""
    return hashlib.sha256(raw).hexdigest()[:16]


def pending(lines: BinaryIO, there: dict[int, str], out: Path | None, counts: dict[str, int],
            step: Callable[[int], None]) -> Iterator[Job]:
    """The lines that are still to be answered; blank ones are none. Raises Usage U052."""
    for number, raw in enumerate(lines, 1):
        raw = raw.removeprefix(b"\xef\xbb\xbf").strip()
        if number in there:
            if there[number] != digest(raw):
                raise Usage("U052", f"{out} answers another line {number} than the input has now", File(str(out)),
                            hint="give a new --out, or remove that file")
            counts["skipped"] += 1
            step(1)
        elif raw:
            yield Job(number, raw)
        else:
            step(1)


@contextmanager
def opened(source: Path) -> Iterator[BinaryIO]:
    """The input, stdin for `-`. Raises Usage U035."""
    if str(source) == "-":
        yield sys.stdin.buffer
        return
    try:
        file = source.open("rb")
    except OSError as err:
        raise Usage("U035", f"cannot read {source}: {err.strerror}") from None
    with file:
        yield file


@contextmanager
def written(out: Path | None) -> Iterator[tuple[Any, dict[int, str]]]:
    """The output at its end, and what it holds: line numbers to digests. A torn last line is cut off."""
    if out is None:
        yield sys.stdout.buffer, {}
        return
    try:
        file = os.fdopen(os.open(out, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
    except OSError as err:
        raise Usage("U051", f"cannot write {out}: {err.strerror or err}", File(str(out)),
                    hint="choose another place with --out") from None
    with file:
        there, end = held(out, file)
        file.truncate(end)
        file.seek(end)
        yield file, there


def held(out: Path, file: BinaryIO) -> tuple[dict[int, str], int]:
    """What an output file holds, and where its last whole line ends. Raises Usage U052 for a file that is no such output."""
    there: dict[int, str] = {}
    end = 0
    for raw in file:
        if not raw.endswith(b"\n") and (raw.startswith(HEAD) or HEAD.startswith(raw)):
            break
        try:
            said = json.loads(raw) if raw.endswith(b"\n") else {}
            there[int(said["line"])] = str(said["input"])
        except (ValueError, KeyError, TypeError):
            raise Usage("U052", f"{out} holds lines that no batch wrote", File(str(out)), hint="give a new --out") from None
        end += len(raw)
    return there, end
