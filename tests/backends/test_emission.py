"""From a graph of kernels to nodes: every op by a rule that reads all of it, names and origins that can be found again."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_run
import pytest
import uir

from uaii.backends.onnx import emit as emission
from uaii.backends.onnx.emit import Emit, emit, emits
from uaii.ir import loc as L
from uaii.ir.core import OPS, Op, Value
from uaii.ir.diag import Internal
from uaii.ir.ops import Add, Scale
from uaii.ir.parse import parse
from uaii.ir.types import Tensor

TEXT = """graph @g stage=ort dims(B, S) (
  %x: f32[B,S,8]
  %keep: i64[] = 0
) {
  @w : f32[8] = "norm.weight":f32[8]
  %n = rms_norm %x, @w {eps=1e-05} : f32[B,S,8]
  %a = add %n, %n : f32[B,S,8]
  %b = scale %a {by=0.5} : f32[B,S,8]
  return first=%b, again=%b, in=%x, keep=%keep
}
"""


class Twice(Op, name="test_twice", stages="ort"):
    """2 * x * (1 + extra): an op that only these tests know."""

    x: Value
    extra: float = 0.0

    def infer(self) -> Tensor:
        return self.x.type


@pytest.fixture(autouse=True)
def only_here() -> Iterator[None]:
    OPS.setdefault("test_twice", Twice)
    yield
    OPS.pop("test_twice", None)
    emission.RULES.pop(Twice, None)


TWICE = TEXT.replace("scale %a {by=0.5}", "test_twice %a {extra=0.5}")


def test_an_op_without_a_rule_is_named() -> None:
    with pytest.raises(Internal) as caught:
        emit(parse(TWICE))
    assert caught.value.code == "E301" and "test_twice" in caught.value.says


def test_a_rule_that_reads_nothing_is_caught() -> None:
    @emits(Twice)
    def blind(op: Twice, e: Emit) -> None:
        e.node("Identity", "somewhere")

    with pytest.raises(Internal) as caught:
        emit(parse(TWICE))
    assert caught.value.code == "E302" and caught.value.says.endswith("never reads x, extra")


def test_a_rule_that_forgets_an_attribute_is_caught_only_where_it_says_something() -> None:
    @emits(Twice)
    def forgetful(op: Twice, e: Emit) -> None:
        e.node("Add", op.x, op.x)

    with pytest.raises(Internal) as caught:
        emit(parse(TWICE))
    assert caught.value.code == "E302" and caught.value.says.endswith("never reads extra")
    emit(parse(TWICE.replace(" {extra=0.5}", "")))


def test_an_op_has_one_rule() -> None:
    emission._load_rules()
    with pytest.raises(TypeError, match="add has two emission rules"):
        emits(Add)(lambda op, e: None)


@pytest.mark.parametrize("stage", ["model", "core"])
def test_only_the_last_stage_is_emitted(stage: str) -> None:
    with pytest.raises(Internal) as caught:
        emit(parse(TEXT.replace("stage=ort", f"stage={stage}")))
    assert caught.value.code == "E303" and stage in caught.value.says


def test_outputs_may_share_a_value_or_be_inputs(tmp_path: Path) -> None:
    graph = parse(TEXT)
    x = np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float32)
    source = uir.RandomSource(graph)
    first, again, given, keep = onnx_run.run(graph, source, {"x": x}, tmp_path)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(given, x)
    assert keep == 0
    want = onnx_run.means(graph, source, {"x": x})
    assert onnx_run.far(first, want[0]) < 1e-6
    assert onnx_run.run(graph, source, {"x": x, "keep": np.int64(3)}, tmp_path)[3] == 3


def test_the_model_says_its_dimensions_and_versions(tmp_path: Path) -> None:
    graph = parse(TEXT)
    onnx_run.session(graph, uir.RandomSource(graph), tmp_path)
    model = onnx.load(tmp_path / "model.onnx")
    shape = model.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in shape] == ["batch_size", "sequence_length", 8]
    assert {o.domain: o.version for o in model.opset_import} == {"": 23, "com.microsoft": 1}
    assert model.producer_name == "uaii" and model.ir_version == 10


def test_nodes_are_named_by_where_they_stand_each_once() -> None:
    graph = parse(TEXT)
    for op, path in zip(graph.ops, ("layers.0/norm", "layers.0", "layers.0"), strict=True):
        object.__setattr__(op, "loc", L.By("p", "", (L.Site(path, "f.py", 1),)))
    graph.ops[-1].results[0].name = "first"
    model, made = emit(graph)
    names = [n.name for n in model.graph.node]
    assert names == ["/layers.0/norm/SimplifiedLayerNormalization", "/layers.0/Add", "/layers.0/Mul",
                     "/outputs/again", "/outputs/in"]
    assert len(set(names)) == len(names)
    assert [made.origins[n][0] for n in names[:3]] == graph.ops
    assert L.site(made.origins[names[0]][1]) == "layers.0/norm"


def test_nodes_of_one_kind_at_one_place_are_numbered() -> None:
    graph = parse(TEXT.replace("%b = scale %a {by=0.5}", "%b = add %a, %n"))
    model, _ = emit(graph)
    assert [n.name for n in model.graph.node][1:3] == ["/add/Add", "/add/Add_1"]


def test_constants_are_stored_once_per_content_and_type() -> None:
    made = Emit({})
    a, b = made.const(np.float32(1.0)), made.const(np.float32(1.0))
    others = {made.const(np.int64(1)), made.const(np.array([1.0], np.float32)), made.const(np.float32(2.0)),
              made.const(np.float32(-0.0)), made.const(np.float32(0.0))}
    assert a == b and len({a} | others) == 6 == len(made.init)


def test_weights_and_values_of_one_name_stay_apart(tmp_path: Path) -> None:
    graph = parse(TEXT.replace("@w", "@n"))
    x = np.ones((1, 1, 8), np.float32)
    source = uir.RandomSource(graph)
    assert onnx_run.far(onnx_run.run(graph, source, {"x": x}, tmp_path)[0], onnx_run.means(graph, source, {"x": x})[0]) < 1e-6


def test_scale_by_a_known_number_is_that_number() -> None:
    graph = parse(TEXT)
    _, made = emit(graph)
    (op,) = (o for o in graph.ops if isinstance(o, Scale))
    assert any(np.frombuffer(t.raw_data, np.float32)[0] == op.by for t in made.init.values() if t.data_type == 1)
