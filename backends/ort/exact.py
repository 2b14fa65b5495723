"""An artifact's own graph and weights with activations in f32: what is left of a difference is not rounding."""
from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx

from uaii.backends.ort import device
from uaii.backends.ort.graph import load
from uaii.backends.ort.manifest import GRAPH, Manifest
from uaii.backends.ort.session import Session
from uaii.ir.diag import Malformed
from uaii.ir.loc import File

LEVEL = "accuracy_level"  # of MatMulNBits and QMoE: 4 rounds activations to int8, 0 and 1 leave them in f32
F32, INT8 = 0, 4


def nodes(held: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and those of their branches."""
    for node in held:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from nodes(attribute.g.node)


def with_f32_activations(model: onnx.ModelProto) -> int:
    """Changes every kernel that rounds activations to int8 so that it does not; returns how many there were."""
    found = [a for part in (model.graph, *model.functions) for node in nodes(part.node) for a in node.attribute
             if a.name == LEVEL and a.i == INT8]
    for attribute in found:
        attribute.i = F32
    return len(found)


def read_graph(folder: Path) -> onnx.ModelProto:
    """The artifact's graph without its weights. Raises Malformed S604."""
    try:
        return onnx.load(folder / GRAPH, load_external_data=False)
    except Exception as error:  # protobuf's errors share no base class below Exception
        raise Malformed("S604", f"{GRAPH} is not an ONNX graph", File(str(folder / GRAPH)), notes=[str(error)],
                        hint="compile the checkpoint again, or copy the whole folder") from None


@contextmanager
def exact_session(folder: Path, manifest: Manifest, threads: int | None) -> Iterator[Session | None]:
    """A session over the artifact whose kernels take f32 activations; None where they all do anyway.

    The folder is left alone: the changed graph stands beside a link to the weights for as long as the session lives.
    """
    model = read_graph(folder)
    if not with_f32_activations(model):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="uaii-verify-") as temp:
        files = {name: size for name, size in manifest.files.items() if name.startswith(GRAPH)}
        (Path(temp) / GRAPH).write_bytes(model.SerializeToString())
        for name in files.keys() - {GRAPH}:
            (Path(temp) / name).symlink_to((folder / name).resolve())
        session = load(Path(temp), files, device.options(threads), [device.CPU])
        yield Session(folder, manifest, session, manifest.context_length, 0.0)
