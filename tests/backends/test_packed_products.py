"""onnxruntime's product with each block layout is the product with the values that the gguf package reads from the same bytes.

The kernels round activations to 8 bits a block; these are whole numbers whose largest in each block is 127, which that keeps.
"""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_run
import pytest
from random_blocks import random_blocks, values

from uaii.backends.onnx.capabilities import CPU
from uaii.ir.ops import EmbeddingNBits, MatMulNBits
from uaii.ir.parse import parse
from uaii.ir.types import BLOCKS, PACKINGS
from uaii.passes.base import run
from uaii.passes.pipelines import to_ort

ROWS, COLS = 72, 512
PRODUCT = 3e-5  # of the largest result: sums of 512 products in f32; an integer off by one moves it by 1e-3


class Blocks:
    """The one stored tensor."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def read(self, name: str) -> Any:
        return self.raw


def whole_numbers(shape: tuple[int, ...], block: int = 16) -> Any:
    """Random whole numbers up to 127, one of each block either of its ends."""
    rng = np.random.default_rng(5)
    x = rng.integers(-126, 127, (*shape[:-1], shape[-1] // block, block))
    x[..., 3] = rng.choice([-127, 127], x.shape[:-1])
    return x.reshape(shape).astype(np.float32)


def lowered(kind: str, inputs: str, line: str, weights: str = "auto") -> Any:
    table = f'@w : {kind}[{ROWS},{COLS}] = "w":{kind}[{ROWS},{COLS}]'
    text = f"graph @one stage=core dims(B, S, P, T=P+S, L) ({inputs}) {{\n  {table}\n  {line}\n  return z=%z\n}}"
    return run(parse(text), to_ort(CPU, 16, weights))


@pytest.mark.parametrize("kind", sorted(BLOCKS))
@pytest.mark.parametrize("rows", [1, 7])
def test_a_product_is_that_of_the_blocks_values(kind: str, rows: int, tmp_path: Path) -> None:
    raw, x = random_blocks(kind, ROWS, COLS, seed=11, std=0.3), whole_numbers((1, rows, COLS))
    graph = lowered(kind, f"%x: f32[B,S,{COLS}]", f"%z = linear %x, @w : f32[B,S,{ROWS}]")
    assert any(isinstance(op, MatMulNBits) and op.block == PACKINGS[kind].size for op in graph.ops)
    (got,) = onnx_run.run(graph, Blocks(raw), {"x": x}, tmp_path)
    assert onnx_run.far(got, x.astype(np.float64) @ values(raw, kind).astype(np.float64).T) <= PRODUCT


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_a_row_looked_up_is_that_of_the_blocks_values(kind: str, tmp_path: Path) -> None:
    raw, ids = random_blocks(kind, ROWS, COLS, seed=12, std=0.3), np.random.default_rng(6).integers(0, ROWS, (2, 9))
    graph = lowered(kind, "%ids: i64[B,S]", f"%z = embedding %ids, @w : f32[B,S,{COLS}]")
    assert any(isinstance(op, EmbeddingNBits) for op in graph.ops)
    (got,) = onnx_run.run(graph, Blocks(raw), {"ids": ids}, tmp_path)
    assert onnx_run.far(got, values(raw, kind)[ids]) <= 1e-6


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_f32_weights_are_exactly_the_blocks_values(kind: str, tmp_path: Path) -> None:
    raw, ids = random_blocks(kind, ROWS, COLS, seed=13, std=0.3), np.arange(ROWS)[None]
    graph = lowered(kind, "%ids: i64[B,S]", f"%z = embedding %ids, @w : f32[B,S,{COLS}]", weights="f32")
    (got,) = onnx_run.run(graph, Blocks(raw), {"ids": ids}, tmp_path)
    np.testing.assert_array_equal(got[0], values(raw, kind))
