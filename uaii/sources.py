"""The checkpoint that an artifact was compiled from: opened again, and compared with what the manifest says of it."""
from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from uaii.backends.ort.manifest import NAME
from uaii.frontend.checkpoint import Checkpoint
from uaii.frontend.open import open_checkpoint
from uaii.ir.diag import Malformed, Usage
from uaii.ir.loc import File, Key

Facts = dict[str, Any]
OPTIONS: dict[str, type] = {"target": str, "weights": str, "context": int, "accept": list}
FACTS = {"size": "bytes", "header_sha256": "header sha256"}


def reopened(said: Facts, source: Path | str | None, notes: list[str]) -> tuple[Checkpoint, Facts, Facts]:
    """The checkpoint, the options of the compile, and a record of the source; `source` replaces the manifest's path.

    Raises Usage U070 when it is not there, U071 when it is another one, Malformed S603 for a manifest that does not say, and
    what opening raises.
    """
    recorded, options = said["sources"], said["options"]
    for key, kind in OPTIONS.items():
        if not isinstance(options.get(key), kind):
            raise Malformed("S603", f"{NAME} has no usable entry options.{key}", Key(NAME, f"options.{key}",
                            json.dumps(options.get(key))), hint="compile the checkpoint again with this version")
    path = Path(source if source is not None else str(recorded.get("path", "")))
    if not str(path) or not path.exists():
        where = "--source" if source is not None else f"{NAME}: sources.path"
        raise Usage("U070", f"only the files were verified: the checkpoint is not there: {path}", File(str(path), where),
                    why="without it nobody knows what the artifact should compute",
                    hint="put it back, or say where it is with --source MODEL")
    checkpoint = open_checkpoint(path)
    now, then = checkpoint.fingerprint(), {k: v for k, v in recorded.items() if k != "path"}
    if differs := list(_differences(now, then, notes)):
        raise Usage("U071", f"only the files were verified: {path} is not the checkpoint that the artifact was compiled from",
                    File(str(path)), notes=differs, why="another checkpoint means something else",
                    hint="give the one it was compiled from with --source MODEL, or compile this one")
    shown = {"path": str(path), "format": checkpoint.format, "family": said["family"], "fingerprint": "as recorded"}
    return checkpoint, {**options, "accept": tuple(options["accept"])}, shown


def _differences(now: Facts, then: Facts, notes: list[str]) -> Iterator[str]:
    """What is not as recorded, a line each; a file that only has another name now is a note."""
    if now.get("format") != then.get("format"):
        yield f"its format is {now.get('format')}, {NAME} says {then.get('format')}"
        return
    ours, theirs = ([f for f in x.get("files", ()) if isinstance(f, dict) and isinstance(f.get("name"), str)]
                    for x in (now, then))
    if len(ours) == len(theirs) == 1 and ours[0]["name"] != theirs[0].get("name"):
        if all(ours[0][k] == theirs[0].get(k) for k in FACTS):
            notes.append(f"the source was called {theirs[0].get('name')} when it was compiled")
            return
        theirs = [theirs[0] | {"name": ours[0]["name"]}]
    by_name = {f.get("name"): f for f in theirs}
    yield from (f"{name} is not there any more" for name in by_name.keys() - {f["name"] for f in ours})
    for file in ours:
        old = by_name.get(file["name"])
        if old is None:
            yield f"{file['name']} was not there"
        else:
            yield from (f"{file['name']}: {what} {file[k]}, {NAME} says {old.get(k)}" for k, what in FACTS.items()
                        if file[k] != old.get(k))
