"""The reference reads a weight when an op takes it, large ones by rows, and gives the same numbers however it cuts them."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_cases import gpt2, llama, mixtral
from gguf_twin import Twin
from quantised_gguf import MIXED, stored, write_quantised, write_stored
from tiny_models import Case, write_folder

from uaii.backends import reference, rows
from uaii.backends.rows import AT_ONCE, Rows, Weights, held
from uaii.compiler import Compiled, through_passes
from uaii.ir.core import Graph, Op, Weight
from uaii.ir.recipe import make
from uaii.ir.types import Tensor
from uaii.ways import Meaning

IDS = [5, 6, 7, 5]


class Counted:
    """A source that counts how often each tensor is read."""

    def __init__(self, source: Any) -> None:
        self.source, self.reads = source, dict[str, int]()

    def read(self, name: str) -> Any:
        self.reads[name] = self.reads.get(name, 0) + 1
        return self.source.read(name)


def logits(done: Compiled, graph: Graph, source: Any = None) -> Any:
    return Meaning(graph, source or done.checkpoint, IDS).run([(0, len(IDS))])


def experts(path: Path) -> Compiled:
    twin: Twin = mixtral.GGUF
    return through_passes(write_stored(path, mixtral.PLAIN, stored(mixtral.PLAIN, {"": "Q4_0"}, 0.25, twin), twin), keep=True)


@pytest.mark.parametrize("name", ["llama", "tied", "gpt2", "mixed", "experts"])
def test_slices_give_what_the_whole_gives(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gpt2's matrices are transposed, so that they are held whole."""
    folders: dict[str, Case] = {"llama": llama.PLAIN, "gpt2": gpt2.PLAIN, "tied": llama.PLAIN.set("t", tie_word_embeddings=True)}
    if name in folders:
        done = through_passes(write_folder(tmp_path / "model", folders[name]), keep=True)
    else:
        done = experts(tmp_path / "x.gguf") if name == "experts" else through_passes(
            write_quantised(tmp_path / "x.gguf", llama.PLAIN, MIXED), keep=True)
    for graph in (done.snapshots[0][1], done.graph):
        want = logits(done, graph)
        monkeypatch.setattr(rows, "AT_ONCE", 300)
        np.testing.assert_allclose(logits(done, graph), want, rtol=0, atol=1e-11 * np.ptp(want))
        monkeypatch.setattr(rows, "AT_ONCE", AT_ONCE)


def test_only_the_rows_that_are_asked_for_are_computed() -> None:
    class Source:
        def read(self, name: str) -> Any:
            return np.arange(24, dtype=np.float32).reshape(6, 4)

    found = Rows(make("add", make("load", "t", Tensor("f32", (6, 4))), 1.0), Source(), (6, 4))
    assert len(found) == 6 and found[1:3].tolist() == [[5, 6, 7, 8], [9, 10, 11, 12]] and found[2].tolist() == [9, 10, 11, 12]
    picked = found[np.array([[4, 0], [4, 4]])]
    assert picked.shape == (2, 2, 4) and picked.dtype == np.float64 and picked[0, 1].tolist() == [1, 2, 3, 4]
    assert (picked[1, 1] == picked[0, 0]).all() and "_whole" not in found.__dict__


def counted(patch: pytest.MonkeyPatch) -> list[str]:
    """The names of weights as they are computed whole."""
    made: list[str] = []

    def whole(w: Weight, *rest: Any, right: Any = rows.whole) -> Any:
        made.append(w.name)
        return right(w, *rest)

    patch.setattr(rows, "whole", whole)
    return made


def test_a_weight_of_several_ops_stays_while_it_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = through_passes(write_folder(tmp_path / "model", llama.PLAIN), keep=True)
    graph = done.graph
    shared = [w for w in graph.weights.values() if sum(w in op.operands for op in graph.ops) > 1]
    assert shared
    for kept, times in ((rows.KEPT, 1), (0, 4)):
        monkeypatch.setattr(rows, "KEPT", kept)
        with monkeypatch.context() as patch:
            made = counted(patch)
            logits(done, graph)
        assert all(made.count(w.name) == times for w in shared), made
    monkeypatch.undo()
    weights, (first, *_) = Weights(graph, done.checkpoint), shared
    for left in reversed(range(weights.left[first])):
        weights.take(first)
        assert (first in weights.kept) == (left > 0)


def test_weights_are_read_one_op_at_a_time(tmp_path: Path) -> None:
    """An op that fails leaves the weights of those after it unread, and experts that nobody chose stay unread too."""
    done = through_passes(write_folder(tmp_path / "model", mixtral.PLAIN.set("one", num_experts_per_tok=1)), keep=True)
    graph, source = done.snapshots[0][1], Counted(done.checkpoint)

    def stop(op: Op, args: dict[str, Any]) -> None:
        if op.name == "linear":
            raise StopIteration

    with pytest.raises(StopIteration):
        reference.evaluate(graph, Feeds(graph), source, watch=stop)
    assert 0 < len(source.reads) < 4 and len(source.source.tensors) > 50
    source.reads.clear()
    Meaning(graph, source, IDS[:1]).run([(0, 1)])
    read = {n for n in source.reads if "experts" in n}
    every = {n for n in done.checkpoint.tensors if "experts" in n}
    assert len(read) == len(every) // mixtral.PLAIN.config["num_local_experts"]


class Feeds(dict[str, Any]):
    """Empty caches and two tokens."""

    def __init__(self, graph: Graph) -> None:
        past = {v.name: np.zeros([{"B": 1, "P": 0}.get(str(d), d) for d in v.type.shape]) for v in graph.inputs
                if "P" in v.type.shape}
        super().__init__(past, input_ids=np.array([[3, 4]]), attention_mask=np.ones((1, 2), np.int64))


def test_what_an_op_needs_of_a_weight() -> None:
    stored_, width = make("load", "t", Tensor("bf16", (1 << 14, 1 << 12))), 1 << 12
    plain = Weight(stored_.type, "t", recipe=stored_)
    turned = make("transpose", stored_)
    assert held(plain, by_rows=False) == 8 << 26 and held(plain, by_rows=True) == 8 * AT_ONCE
    assert held(Weight(turned.type, "t", recipe=turned), by_rows=True) == 8 * AT_ONCE + (2 << 26)
    assert [s.stop - s.start for s in rows.stretches(2500, width)] == [1024, 1024, 452]
