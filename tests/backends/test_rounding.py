"""Floats become the blocks that the gguf package makes of them, bit for bit, and what that loses is counted right."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from uaii.backends import recipes, slices
from uaii.backends.losses import Counted, Loss
from uaii.backends.onnx.emit import emit
from uaii.backends.onnx.writer import write
from uaii.ir.diag import Malformed, Unsupported
from uaii.ir.parse import parse
from uaii.ir.recipe import make
from uaii.ir.types import ROUNDED, Tensor

Array = Any
KINDS = sorted(ROUNDED.values())
RNG = np.random.default_rng(17)
DTYPES = {"f32": np.float32, "f16": np.float16, "f64": np.float64}


class One:
    """The one stored tensor."""

    def __init__(self, x: Array) -> None:
        self.x = x

    def read(self, name: str) -> Array:
        return self.x


def blocks(x: Array, kind: str, elem: str = "f32") -> Array:
    return recipes.evaluate(make("quantise", make("load", "w", Tensor(elem, x.shape)), kind), One(x))


def theirs(x: Array, kind: str) -> Array:
    return gguf.quantize(np.ascontiguousarray(x, np.float32), gguf.GGMLQuantizationType[kind.upper()])


def meant(raw: Array, kind: str) -> Array:
    return gguf.dequantize(raw, gguf.GGMLQuantizationType[kind.upper()])


def awkward() -> dict[str, Array]:
    """Values at which roundings differ: halves of a step, two ends equally far from zero, zeros, what f16 scales lose."""
    normal = RNG.standard_normal((64, 256)).astype(np.float32)
    steps = RNG.integers(-254, 255, (64, 256)).astype(np.float32) / 2
    steps[:, ::32] = 127
    ends = RNG.integers(-8, 9, (64, 256)).astype(np.float32) / 16
    just_below = np.full((1, 256), 0.49999997, np.float32)
    just_below[:, ::32] = 127
    return {"normal": normal, "halves": steps, "ends": ends, "zeros": np.zeros((3, 64), np.float32), "just-below": just_below,
            "tiny": normal * np.float32(1e-7), "huge": normal * np.float32(1e4), "negative": -np.abs(normal),
            "one": np.eye(64, dtype=np.float32)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(awkward()))
def test_blocks_are_the_gguf_packages(name: str, kind: str) -> None:
    x = awkward()[name]
    np.testing.assert_array_equal(blocks(x, kind), theirs(x, kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("elem", ["f32", "f16", "f64", "bf16"])
def test_every_float_type_is_rounded_by_its_f32_values(elem: str, kind: str) -> None:
    x = RNG.standard_normal((5, 96)).astype(np.float32)
    stored = (x.view(np.uint32) >> 16).astype(np.uint16) if elem == "bf16" else x.astype(DTYPES[elem])
    values = (stored.astype(np.uint32) << 16).view(np.float32) if elem == "bf16" else stored
    np.testing.assert_array_equal(blocks(stored, kind, elem), theirs(values, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_stacks_and_transposed_rows_are_rounded_along_the_last_axis(kind: str) -> None:
    x = RNG.standard_normal((3, 64, 32)).astype(np.float32)
    np.testing.assert_array_equal(blocks(x, kind), np.stack([theirs(y, kind) for y in x]))
    turned = make("quantise", make("transpose", make("load", "w", Tensor("f32", (3, 64, 32)))), kind)
    np.testing.assert_array_equal(recipes.evaluate(turned, One(x)), np.stack([theirs(y.T, kind) for y in x]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused(bad: float, kind: str) -> None:
    for elem in ("f32", "f16"):
        x = np.ones((4, 64), DTYPES[elem])
        x[2, 40] = bad
        with pytest.raises(Malformed) as caught:
            blocks(x, kind, elem)
        assert caught.value.code == "B601" and caught.value.says == "a value of w is not finite"


@pytest.mark.parametrize(("kind", "most"), [("q8_0", 127.0), ("q4_0", 8.0)])
def test_a_value_beyond_every_scale_is_refused(kind: str, most: float) -> None:
    """A block's largest value is `most` steps of its f16 scale."""
    x = np.ones((4, 64), np.float32)
    x[1, 2] = most * 65500
    assert meant(blocks(x, kind), kind)[1, 2] == pytest.approx(most * 65500, rel=1e-3)
    x[1, 2] = most * 65540
    with pytest.raises(Unsupported) as caught:
        blocks(x, kind)
    assert caught.value.code == "B602" and kind in caught.value.says and caught.value.exit_code == 3


def numpy_loss(x: Array, kind: str) -> dict[str, float]:
    """By other expressions, in f64."""
    off, size = meant(theirs(x, kind), kind).astype(np.float64) - x, np.sqrt(np.mean(x.astype(np.float64) ** 2))
    return {"rms": float(np.sqrt(np.mean(off ** 2)) / size), "largest": float(np.abs(off).max() / size)}


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_what_numpy_says(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over slices too: sums, not means of means."""
    x = RNG.standard_normal((50, 64)).astype(np.float32) * np.linspace(0.01, 3, 50, dtype=np.float32)[:, None]
    monkeypatch.setattr(recipes, "CHUNK", 64 * 7)
    counted = Counted(One(x))
    recipes.evaluate(make("quantise", make("load", "w", Tensor("f32", x.shape)), kind), counted)
    assert counted.losses["w"].count == x.size
    assert counted.losses["w"].record() == pytest.approx(numpy_loss(x, kind), rel=6e-3)  # three digits


def test_nothing_lost_is_zero() -> None:
    assert Loss().record() == {"rms": 0.0, "largest": 0.0}
    counted = Counted(One(np.zeros((2, 32), np.float32)))
    recipes.evaluate(make("quantise", make("load", "w", Tensor("f32", (2, 32))), "q8_0"), counted)
    assert counted.losses["w"].record() == {"rms": 0.0, "largest": 0.0}


def test_the_writer_counts_each_value_once_and_each_tensor_of_a_stack_for_itself(tmp_path: Path) -> None:
    graph = parse("""graph @g stage=ort dims(B, S) (%x: f32[B,S,64]) {
      @w.quants : u8[96,2,32] = quants(concat(quantise("a":f32[64,64], q8_0), quantise("b":bf16[32,64], q8_0)), 8)
      @w.scales : f32[96,2] = scales(concat(quantise("a":f32[64,64], q8_0), quantise("b":bf16[32,64], q8_0)))
      %y = matmul_nbits %x, @w.quants, @w.scales {bits=8, int8_activations=True} : f32[B,S,96]
      return y=%y
    }""")
    a, b = RNG.standard_normal((64, 64)).astype(np.float32), RNG.standard_normal((32, 64)).astype(np.float32) * np.float32(9)
    bits = (b.view(np.uint32) >> 16).astype(np.uint16)

    class Two:
        def read(self, name: str) -> Array:
            return {"a": a, "b": bits}[name]

    losses = write(emit(graph)[0], graph, Two(), tmp_path).losses
    assert {n: x.count for n, x in losses.items()} == {"a": a.size, "b": b.size}
    for name, x in (("a", a), ("b", (bits.astype(np.uint32) << 16).view(np.float32))):
        assert losses[name].record() == pytest.approx(numpy_loss(x, "q8_0"), rel=6e-3)


def test_a_table_is_rounded_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 MB of bf16, which are 32 in f32 and 8 in 8 bits: of neither form more than a few slices is there at once."""
    import tracemalloc
    monkeypatch.setattr(slices, "LARGE", 1 << 18)
    graph = parse("""graph @g stage=ort dims(B, S) (%x: f32[B,S,1024]) {
      @w.quants : u8[8192,32,32] = quants(quantise("w":bf16[8192,1024], q8_0), 8)
      @w.scales : f32[8192,32] = scales(quantise("w":bf16[8192,1024], q8_0))
      %y = matmul_nbits %x, @w.quants, @w.scales {bits=8, int8_activations=True} : f32[B,S,8192]
      return y=%y
    }""")
    model, stored = emit(graph)[0], One(RNG.integers(0, 0x7F00, (8192, 1024)).astype(np.uint16) & np.uint16(0xBFFF))
    tracemalloc.start()
    write(model, graph, stored, tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
