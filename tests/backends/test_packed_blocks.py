"""Packing keeps exactly the values of the file: unpacked again, they are what the gguf package makes of the same bytes."""
from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from random_blocks import HALVES

from uaii.backends import recipes
from uaii.backends.blocks import KINDS
from uaii.ir.diag import Malformed
from uaii.ir.recipe import Recipe, make
from uaii.ir.types import BLOCKS, PACKINGS, Tensor

Array = Any
ROWS, COLS = 256, 512


class One:
    def __init__(self, raw: Array) -> None:
        self.raw = raw

    def read(self, name: str) -> Array:
        return self.raw


def every_pattern(kind: str) -> Array:
    """Random rows of blocks in which every byte occurs at every place, kept where all values are finite."""
    rng = np.random.default_rng(3)
    size = BLOCKS[kind].nbytes
    raw = rng.integers(0, 256, (6000, size)).astype(np.uint8)
    for at in range(size):
        raw[256 * (at % 16):256 * (at % 16) + 256, at] = np.arange(256, dtype=np.uint8)
    with np.errstate(all="ignore"):
        values = gguf.dequantize(raw.reshape(16, -1), gguf.GGMLQuantizationType[kind.upper()]).reshape(len(raw), -1)
    legal = np.isfinite(values).all(axis=1) & ((kind != "mxfp4") | (raw[:, 0] != 255))
    whole = raw[legal][:ROWS * (COLS // BLOCKS[kind].size)]
    assert len(whole) == ROWS * (COLS // BLOCKS[kind].size)
    return whole.reshape(ROWS, -1)


def stored(kind: str) -> Recipe:
    return make("load", "blk.0.ffn_up.weight", Tensor(kind, (ROWS, COLS)))


def unpacked(kind: str, raw: Array) -> tuple[Array, Array, Array]:
    """Signed integers [N,K], scales and offsets per value, from the layout MatMulNBits reads; f32."""
    how, source = PACKINGS[kind], One(raw)
    quants = recipes.evaluate(make("quants", stored(kind), how.bits), source)
    assert quants.dtype == np.uint8 and quants.shape == (ROWS, COLS // how.size, how.size * how.bits // 8)
    flat = quants.reshape(ROWS, -1)
    if how.bits == 4:
        integers = np.empty((ROWS, COLS), np.int64)
        integers[:, 0::2], integers[:, 1::2] = flat & 15, flat >> 4
    else:
        integers = flat.astype(np.int64)
    per_value = [np.repeat(recipes.evaluate(make(part, stored(kind)), source), how.size, axis=1)
                 for part in ("scales", "offsets")]
    assert all(x.dtype == np.float32 for x in per_value)
    return integers - (1 << (how.bits - 1)), per_value[0], per_value[1]


def test_every_block_layout_can_be_packed() -> None:
    assert set(PACKINGS) == set(BLOCKS) == set(KINDS)


@pytest.mark.parametrize("kind", sorted(k for k, how in PACKINGS.items() if not how.affine))
def test_symmetric_blocks_are_held_bit_for_bit(kind: str) -> None:
    raw = every_pattern(kind)
    integers, scales, offsets = unpacked(kind, raw)
    want = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind.upper()])
    np.testing.assert_array_equal(integers.astype(np.float32) * scales, want)
    assert not offsets.any()
    assert len(np.unique(integers)) > 2


@pytest.mark.parametrize("kind", sorted(k for k, how in PACKINGS.items() if how.affine))
def test_affine_blocks_are_held_to_one_rounding(kind: str) -> None:
    """s*(q - zero) + (m + zero*s) is s*q + m but for roundings to f32 of the size of its terms."""
    raw = every_pattern(kind)
    integers, scales, offsets = unpacked(kind, raw)
    want = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind.upper()]).astype(np.float64)
    held = scales.astype(np.float64) * integers + offsets
    terms = np.maximum(np.abs(scales * integers), np.maximum(np.abs(offsets), np.abs(scales * KINDS[kind].zero)))
    assert (np.abs(held - want) <= 2 * np.spacing(terms.astype(np.float32))).all()
    assert len(np.unique(integers)) == {"q2_k": 4, "q4_1": 16, "q4_k": 16, "q5_1": 32, "q5_k": 32}[kind]


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_dequantised_blocks_are_the_gguf_packages(kind: str) -> None:
    raw = every_pattern(kind)
    got = recipes.evaluate(make("dequant", stored(kind)), One(raw))
    np.testing.assert_array_equal(got, gguf.dequantize(raw, gguf.GGMLQuantizationType[kind.upper()]))
    assert got.dtype == np.float32 and got.shape == (ROWS, COLS)


@pytest.mark.parametrize("kind", sorted(set(BLOCKS) - {"mxfp4", "iq1_m"}))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_scale_that_is_not_finite_is_refused(kind: str, bad: float) -> None:
    for place in HALVES.get(kind, (0,)):
        raw = every_pattern(kind)
        blocks = raw.reshape(ROWS, -1, BLOCKS[kind].nbytes)
        blocks[-1, -1] = np.maximum(blocks[-1, -1], 1)
        blocks[-1, -1, place:place + 2] = np.array([bad], np.float16).view(np.uint8)
        minimum = PACKINGS[kind].affine and place == HALVES[kind][-1]
        for recipe in (make("dequant", stored(kind)), make("offsets" if minimum else "scales", stored(kind))):
            with pytest.raises(Malformed) as caught:
                recipes.evaluate(recipe, One(raw))
            assert caught.value.code == "B601" and "blk.0.ffn_up.weight" in caught.value.says


@pytest.mark.parametrize("kind", ["mxfp4", "iq1_m"])
def test_a_scale_without_a_half_of_its_own_is_refused_too(kind: str) -> None:
    """MXFP4's exponent 255 is no number; IQ1_M's f16 scale lies in the top nibbles of its last four words."""
    raw = every_pattern(kind)
    block = raw.reshape(ROWS, -1, BLOCKS[kind].nbytes)[-1, -1]
    block[[0] if kind == "mxfp4" else [49, 51, 53, 55]] = 255
    with pytest.raises(Malformed) as caught:
        recipes.evaluate(make("scales", stored(kind)), One(raw))
    assert caught.value.code == "B601"


def test_rows_are_permuted_as_blocks_and_as_values_alike() -> None:
    raw = every_pattern("q4_1")
    moved = make("concat", make("unpermute", stored("q4_1"), 8), make("rows", stored("q4_1"), 100, 164))
    as_blocks = recipes.evaluate(make("dequant", moved), One(raw))
    values = recipes.evaluate(make("dequant", stored("q4_1")), One(raw))
    order = np.arange(ROWS).reshape(8, ROWS // 16, 2).swapaxes(1, 2).ravel()
    np.testing.assert_array_equal(as_blocks, np.concatenate([values[order], values[100:164]]))
