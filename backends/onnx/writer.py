"""Streams weights beside the model: one tensor in memory at a time, each at an aligned offset, equal bytes once."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from uaii.backends import recipes
from uaii.backends.losses import Counted, Loss
from uaii.backends.onnx.emit import ELEM, weight_name
from uaii.backends.onnx.hashed import Bytes, Hashed
from uaii.backends.onnx.tables import add_tables, is_table
from uaii.backends.slices import slices
from uaii.ir.core import Graph, Weight
from uaii.ir.diag import Internal
from uaii.ir.recipe import Recipe
from uaii.ir.types import Tensor

DATA = "model.onnx.data"
ALIGN = 64
Progress = Callable[[str, int, int], None]  # weight, bytes written so far, bytes in all


@dataclass(frozen=True)
class Placed:
    """Where a weight lies in the data file."""

    offset: int
    nbytes: int


@dataclass(frozen=True)
class Written:
    """Where each weight lies in the data file, the file's sha256 in hex, and what rounding took, by stored tensor."""

    places: dict[str, Placed]
    sha256: str
    losses: dict[str, Loss]


def write(model: onnx.ModelProto, graph: Graph, source: recipes.Source, folder: Path,
          progress: Progress | None = None, views: Mapping[str, tuple[Weight, int]] | None = None) -> Written:
    """Writes model.onnx and model.onnx.data into `folder`. `views` are initializers that are one
    element of a weight; a weight that is only read by its elements is none itself.

    Raises Internal E310 when a recipe yields other bytes than its type says.
    """
    places: dict[str, Placed] = {}
    counted = Counted(source)
    own = [w for w in graph.weights.values() if w.recipe.op != "view" and not is_table(w)]
    total, end = sum(w.type.nbytes for w in own), 0
    with Hashed(folder / DATA) as out, ThreadPoolExecutor(1) as pool:
        pieces = ((w, piece) for w in own for piece in slices(w.recipe))
        for w, values in _ahead(pool, pieces, counted):
            if w.name not in places:
                places[w.name] = Placed(out.align(ALIGN), w.type.nbytes)
                end = out.size + w.type.nbytes
            out.write(values)
            if progress and out.size == end:
                progress(w.name, sum(p.nbytes for p in places.values()), total)
        sha256 = out.sha256()
    add_tables(model, graph, source)
    read = {i for n in model.graph.node for i in n.input} | {v.name for v in model.graph.output}
    for w in graph.weights.values():
        if is_table(w):
            continue
        if w.recipe.op == "view":
            places[w.name] = places[w.recipe.args[0]]
        if weight_name(w) in read:
            model.graph.initializer.append(_external(weight_name(w), w.type, places[w.name]))
    for name, (w, index) in (views or {}).items():
        at, (count, *shape) = places[w.name], w.type.sizes
        size = at.nbytes // count
        model.graph.initializer.append(_external(name, Tensor(w.type.elem, tuple(shape)), Placed(at.offset + index * size, size)))
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return Written(places, sha256, counted.losses)


def _ahead(pool: ThreadPoolExecutor, pieces: Iterable[tuple[Weight, Recipe]],
           source: Counted) -> Iterator[tuple[Weight, Bytes]]:
    """The pieces' values in order, the next ones computed while the last are written."""
    pending: tuple[Weight, Future[Bytes]] | None = None
    for w, piece in pieces:
        following = pool.submit(_bytes, w, piece, source)
        if pending is not None:
            yield pending[0], pending[1].result()
        pending = w, following
    if pending is not None:
        yield pending[0], pending[1].result()


def _bytes(w: Weight, recipe: Recipe, source: Counted) -> Bytes:
    """The values of a slice of `w`, as stored."""
    counts = any(p.op == "quants" for p in recipe.parts)  # scales and offsets are of the same blocks, once more
    values = np.ascontiguousarray(recipes.evaluate(recipe, source if counts else source.source))
    if values.nbytes != recipe.type.nbytes or values.dtype != recipes.DTYPES.get(w.type.elem, np.uint8):
        gave = f"{values.dtype}{list(values.shape)}"
        raise Internal("E310", f"@{w.name} is {w.type}, its recipe gave {gave}", w.loc)
    return values.data.cast("B") if values.nbytes else b""


def _external(name: str, type: Tensor, at: Placed) -> TensorProto:
    proto = TensorProto(name=name, data_type=ELEM[type.elem], dims=type.sizes, data_location=TensorProto.EXTERNAL)
    fields: dict[str, Any] = {"location": DATA, "offset": at.offset, "length": at.nbytes}
    for k, v in fields.items():
        proto.external_data.add(key=k, value=str(v))
    return proto
