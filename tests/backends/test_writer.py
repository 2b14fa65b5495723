"""The data file: aligned, every weight's bytes once, and nothing that is not what its type says."""
from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import uir

from uaii.backends.onnx.emit import emit
from uaii.backends.onnx.writer import ALIGN, DATA, Placed, write
from uaii.ir.diag import Internal
from uaii.ir.parse import parse
from uaii.passes.base import run

TEXT = """graph @g stage=ort dims(B, S) (
  %ids: i64[B,S]
) {
  @b : f32[3] = "b":f32[3]
  @norm : f32[96] = "norm":f32[96]
  @t : q8_0[40,96] = "t":q8_0[40,96]
  @odd : f32[3,96] = "odd":f32[3,96]
  %e = embedding %ids, @t : f32[B,S,96]
  %n = rms_norm %e, @norm {eps=1e-05} : f32[B,S,96]
  %z = linear %n, @odd, bias=@b : f32[B,S,3]
  %y = linear %n, @t : f32[B,S,40]
  return y=%y, z=%z
}"""


def written(folder: Path, text: str = TEXT) -> tuple[dict[str, Placed], Any, Any]:
    graph = run(parse(text), [uir.PASSES[p] for p in ("pack-linear", "pack-embedding", "share-tied")])
    model, _ = emit(graph)
    seen: list[tuple[str, int, int]] = []
    written = write(model, graph, uir.RandomSource(graph), folder, lambda *a: seen.append(a))
    assert written.sha256 == hashlib.sha256((folder / DATA).read_bytes()).hexdigest()
    return written.places, graph, seen


def test_weights_lie_aligned_one_after_another(tmp_path: Path) -> None:
    places, graph, seen = written(tmp_path)
    own = [w for w in graph.weights.values() if w.recipe.op != "view"]
    end = 0
    for w in own:
        at = places[w.name]
        assert at.offset % ALIGN == 0 and end <= at.offset < end + ALIGN and at.nbytes == w.type.nbytes
        end = at.offset + at.nbytes
    assert (tmp_path / DATA).stat().st_size == end > sum(w.type.nbytes for w in own), "no weight here needs aligning"
    assert [name for name, _, _ in seen] == [w.name for w in own]
    assert seen[-1][1] == seen[-1][2] == sum(w.type.nbytes for w in own)
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})


def test_views_are_the_same_bytes_under_another_shape(tmp_path: Path) -> None:
    places, graph, _ = written(tmp_path)
    (view,) = (w for w in graph.weights.values() if w.recipe.op == "view")
    owner = view.recipe.args[0]
    assert places[view.name] == places[owner]
    model = onnx.load(tmp_path / "model.onnx")
    held = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    a, b = held[f"weights/{view.name}"], held[f"weights/{owner}"]
    assert a.shape != b.shape and a.tobytes() == b.tobytes() and a.any()


def test_the_bytes_are_what_the_recipes_give(tmp_path: Path) -> None:
    _, graph, _ = written(tmp_path)
    source = uir.RandomSource(graph)
    for t in onnx.load(tmp_path / "model.onnx").graph.initializer:
        if t.name.startswith("weights/"):
            want = uir.weight_values(graph, t.name.removeprefix("weights/"), source)
            np.testing.assert_array_equal(onnx.numpy_helper.to_array(t), want)


class Wrong:
    def __init__(self, value: Any) -> None:
        self.value = value

    def read(self, name: str) -> Any:
        return self.value


@pytest.mark.parametrize("value", [np.zeros(7, np.float32), np.zeros(9, np.float32), np.zeros(8, np.float64),
                                   np.zeros(8, np.float16), np.zeros(8, np.int32), np.zeros(0, np.float32)])
def test_a_source_that_gives_something_else_is_refused(value: Any, tmp_path: Path) -> None:
    """i32 has as many bytes as f32: the element type is compared too."""
    graph = parse("""graph @g stage=ort dims(B) (%x: f32[B,8]) {
      @w : f32[8] = "w":f32[8]
      %n = rms_norm %x, @w {eps=1e-05} : f32[B,8]
      return n=%n
    }""")
    with pytest.raises(Internal) as caught:
        write(emit(graph)[0], graph, Wrong(value), tmp_path)
    assert caught.value.code == "E310" and "@w is f32[8]" in caught.value.says and str(value.dtype) in caught.value.says
    assert not (tmp_path / "model.onnx").exists()


def test_only_one_weight_is_in_memory_at_a_time(tmp_path: Path) -> None:
    """32 weights of 1 MB: the writer's own peak stays far below their sum."""
    import tracemalloc
    rows = "\n".join(f'@w{i} : f32[512,512] = cast("w{i}":f16[512,512], f32)' for i in range(32))
    ops = "\n".join(f"%y{i} = linear %x, @w{i} : f32[B,512]" for i in range(32))
    names = ", ".join(f"y{i}=%y{i}" for i in range(32))
    graph = parse(f"graph @g stage=ort dims(B) (%x: f32[B,512]) {{ {rows} {ops} return {names} }}")
    model, stored = emit(graph)[0], Wrong(np.ones((512, 512), np.float16))
    tracemalloc.start()
    write(model, graph, stored, tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / DATA).stat().st_size == 32 << 20
    assert peak < 5 << 20
