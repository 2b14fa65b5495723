"""A JSON object from a file that nobody vouches for."""
from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from uaii.frontend.blob import not_a_file, refuse_placeholder, unreadable
from uaii.ir.diag import Malformed
from uaii.ir.loc import File

LIMIT = 1 << 28  # bytes; the index of the largest public checkpoint is under 2^25


def parse_object(code: str, path: Path, text: bytes, place: str = "") -> dict[str, Any]:
    """The object that `text` holds; every number finite, every key once.

    Raises Malformed `code` naming the key, or the line and column; `place` says where in the file the text stands.
    """
    file = str(path)

    def bad(says: str, at: str) -> Malformed:
        return Malformed(code, f"{path.name}: {says}", File(file, f"{place}, {at}".strip(", ")),
                         hint="restore the file from its source")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            twice = shown(next(k for k, n in Counter(k for k, _ in pairs).items() if n > 1))
            raise bad(f"the key {twice} is there twice", twice)
        return out

    try:
        data = json.loads(text.decode("utf-8"), object_pairs_hook=once)
    except UnicodeDecodeError as err:
        raise bad("not UTF-8 text", f"byte {err.start}") from None
    except json.JSONDecodeError as err:
        raise bad(f"not JSON: {err.msg}", f"line {err.lineno} column {err.colno}") from None
    except RecursionError:
        raise bad("nested too deeply", "") from None
    except ValueError:
        raise bad("a number has more digits than any number needs", "") from None
    if not isinstance(data, dict):
        raise bad(f"must hold a JSON object, holds {kind(data)}", "line 1")
    for at, number in _floats(data):
        if not math.isfinite(number):
            raise bad(f"{at} is {json.dumps(number)}, which is not a number that JSON has or a model can use", at)
    return data


def read_object(code: str, path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises Malformed `code` (see parse_object), H301 (a Git LFS pointer, a web page), Usage U003 when it cannot be read.
    """
    if not path.is_file():
        raise not_a_file(path)
    try:
        with path.open("rb") as file:
            text = file.read(LIMIT + 1)
    except OSError as err:
        raise unreadable(path, err) from None
    if len(text) > LIMIT:
        raise Malformed(code, f"{path.name} is larger than {LIMIT} bytes", File(str(path)), hint="download it again")
    refuse_placeholder("H301", path, text[:512], len(text))
    return parse_object(code, path, text)


def kind(value: object) -> str:
    """The JSON name of a value's type."""
    names = {bool: "a boolean", str: "a string", list: "a list", dict: "an object", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def shown(text: str) -> str:
    """A name from the file as it can be printed: no control characters, at most 80 characters."""
    return text if text.isprintable() and len(text) <= 80 else ascii(text[:80])


def said(value: object) -> str:
    """A value from the file as it can be printed: large and nested ones by their kind only."""
    if isinstance(value, dict) or (isinstance(value, list) and (len(value) > 16 or any(
            isinstance(x, list | dict) for x in value))):
        return f"{kind(value)} of {len(value)} entries"
    return shown(str(value))


def _floats(data: dict[str, Any]) -> list[tuple[str, float]]:
    found, todo = [], [(shown(k), v) for k, v in data.items()]
    while todo:
        at, value = todo.pop()
        match value:
            case float():
                found.append((at, value))
            case dict():
                todo += [(f"{at}.{shown(k)}", v) for k, v in value.items()]
            case list():
                todo += [(f"{at}[{i}]", v) for i, v in enumerate(value)]
    return found
