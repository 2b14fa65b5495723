"""Artifacts that were changed after the compile, their manifest made to agree again."""
from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx


def restamped(folder: Path) -> Path:
    """The manifest with the sizes and sha256 that the files have now."""
    said = json.loads((folder / "uaii.json").read_text("utf-8"))
    for name in said["files"]:
        data = (folder / name).read_bytes()
        said["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "uaii.json").write_text(json.dumps(said), "utf-8")
    return folder


def initializer(folder: Path, name: str) -> dict[str, int]:
    """Offset and length in bytes of an initializer in the data file."""
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    (found,) = [t for t in graph.initializer if t.name == name]
    return {e.key: int(e.value) for e in found.external_data if e.key in ("offset", "length")}


def with_bytes(folder: Path, at: int, change: Callable[[int], int]) -> Path:
    """The folder with one byte of the data file changed."""
    data = bytearray((folder / "model.onnx.data").read_bytes())
    data[at] = change(data[at])
    (folder / "model.onnx.data").write_bytes(data)
    return restamped(folder)


def with_attribute(folder: Path, kind: str, name: str, value: Any) -> list[str]:
    """The folder with an attribute of every node of a kind set; returns the nodes' names."""
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    changed = [node for node in model.graph.node if node.op_type == kind]
    for node in changed:
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    restamped(folder)
    return [node.name for node in changed]
