"""Types of recipes, and what they compute against NumPy written out again."""
from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from uaii.backends import recipes, slices
from uaii.ir.diag import Internal
from uaii.ir.parse import parse
from uaii.ir.recipe import RECIPES, Recipe, make
from uaii.ir.types import BLOCKS, ELEMS, Tensor

RNG = np.random.default_rng(0)


def recipe(text: str) -> Recipe:
    """A recipe from its text, which must print as it was given."""
    graph = parse(f"graph @g stage=model dims() () {{ @w : {'f32[1]'} = {text} return }}")
    found = graph.weights["w"].recipe
    assert str(found) == text
    return found


GOOD = {
    '"a":q4_0[4,64]': "q4_0[4,64]", 'cast("a":bf16[4], f32)': "f32[4]", 'cast("a":f32[4], bf16)': "bf16[4]",
    'add("a":f16[4], 1.0)': "f16[4]", 'scale("a":bf16[4], 0.5)': "bf16[4]", 'divide("a":f32[4], "b":bf16[4])': "f32[4]",
    'transpose("a":f16[4,6])': "f16[6,4]", 'reshape("a":u8[4,6], [2, 12])': "u8[2,12]",
    'rows("a":q4_1[8,32], 2, 5)': "q4_1[3,32]",
    'concat("a":q8_0[8,32], "b":q8_0[4,32])': "q8_0[12,32]", 'concat("a":f32[8], "b":f32[4])': "f32[12]",
    'group_rows("a":q4_0[12,64], 3, 1, 3)': "q4_0[6,64]", 'group_rows("a":f32[12], 2, 0, 1)': "f32[2]",
    'unpermute("a":q4_0[16,64], 2)': "q4_0[16,64]", 'unpermute("a":f32[16], 4)': "f32[16]",
    'dequant("a":q6_k[2,256])': "f32[2,256]", 'quants("a":q4_1[3,64], 4)': "u8[3,2,16]",
    'quants("a":q8_0[3,64], 8)': "u8[3,2,32]",
    'scales("a":q4_0[3,96])': "f32[3,3]", 'offsets("a":q4_1[3,96])': "f32[3,3]",
    'quants("a":q6_k[3,256], 8)': "u8[3,16,16]", 'scales("a":q4_k[3,512])': "f32[3,16]", "view(other, u8[4,4])": "u8[4,4]",
    'stack("a":q4_0[4,32], "b":q4_0[4,32])': "q4_0[2,4,32]", 'transpose("a":f16[2,4,6])': "f16[2,6,4]",
    'interleave("a":q8_0[2,3,32], "b":q8_0[2,3,32])': "q8_0[2,6,32]", 'interleave("a":f32[2,3], "b":f32[2,3])': "f32[2,6]",
    'join("a":q8_0[2,3,32], "b":q8_0[2,1,32])': "q8_0[2,4,32]", 'every("a":q4_0[2,6,32], 1, 6, 2)': "q4_0[2,3,32]",
    'every("a":f32[2,6], 0, 3, 1)': "f32[2,3]", 'spread("a":f32[2,3], 2)': "f32[2,6]",
    'reshape("a":q8_0[6,64], [2, 3, 64])': "q8_0[2,3,64]", 'quants("a":q4_0[2,3,64], 8)': "u8[2,3,2,32]",
    'mxfp4("a":u8[2,3,4,16], "b":u8[2,3,4])': "mxfp4[2,3,128]",
    'f8_e4m3("a":f8_e4m3[5,6], "b":f32[3,2], 2, 4)': "f32[5,6]",
    'quantise("a":bf16[3,64], q8_0)': "q8_0[3,64]", 'quantise("a":f64[2,3,32], q4_0)': "q4_0[2,3,32]",
    "fill(1.5, [2, 3])": "f32[2,3]", "block_rows(3, 32, 4)": "u8[3,3,16]",
    "rope_freqs(10000.0, 16, default)": "f32[8]", "rope_cos(rope_freqs(10000.0, 16, linear, 2.0), 32, 1.5)": "f32[32,8]",
    "rope_sin(rope_freqs(10000.0, 16, yarn, 2.0, 1.0, 4.0), 32, 1.5)": "f32[32,8]",
}
BAD = {
    'cast("a":u8[4], f32)': "cast of u8[4]", 'cast("a":f32[4], q4_0)': "to q4_0", 'add("a":q4_0[4,32], 1.0)': "add to q4_0",
    'scale("a":i64[4], 2.0)': "scale of i64", 'divide("a":f32[4], "b":f32[5])': "f32[4] / f32[5]",
    'transpose("a":f32[4])': "transpose of f32[4]", 'transpose("a":q4_0[4,32])': "transpose of q4_0",
    'reshape("a":f32[4], [5])': "f32[4] as [5]", 'reshape("a":q4_0[4,32], [2, 64])': "q4_0[4,32] as",
    'rows("a":f32[4], 2, 2)': "rows 2:2", 'rows("a":f32[4], -1, 2)': "rows -1:2", 'rows("a":f32[4], 0, 5)': "rows 0:5",
    'concat("a":f32[4], "b":f16[4])': "concat of", 'concat("a":f32[4,2], "b":f32[4,3])': "concat of",
    'group_rows("a":f32[12], 5, 0, 1)': "of each of 5 groups", 'group_rows("a":f32[12], 3, 2, 5)': "rows 2:5",
    'unpermute("a":f32[12,4], 4)': "over 4 heads", 'dequant("a":f16[4])': "dequant of f16",
    'quants("a":f16[2,256], 8)': "no integer blocks", 'scales("a":f32[2,32])': "no integer blocks",
    'offsets("a":q4_1[2,2,2,32])': "no integer blocks", 'stack("a":f32[4], "b":f16[4])': "stack of f32[4], f16[4]",
    'f8_e4m3("a":u8[4,6], "b":f32[2,2], 2, 4)': "f8_e4m3 of", 'f8_e4m3("a":f8_e4m3[4,6], "b":f32[2,2], 1, 4)': "f8_e4m3 of",
    'mxfp4("a":u8[2,4,16], "b":u8[2,3])': "mxfp4 of", 'mxfp4("a":u8[2,4,8], "b":u8[2,4])': "mxfp4 of",
    'interleave("a":f32[4], "b":f32[4])': "interleave of", 'interleave("a":f32[2,4], "b":f32[2,5])': "interleave of",
    'join("a":f32[2,3], "b":f32[3,3])': "join of", 'every("a":q4_0[4,32], 0, 2, 1)': "every 1 of 0:2",
    'every("a":f32[4,6], 2, 7, 1)': "every 1 of 2:7", 'spread("a":q4_0[4,32], 2)': "spread of q4_0",
    'quantise("a":f32[3,48], q8_0)': "quantise of f32[3,48] to q8_0", 'quantise("a":f32[64], q8_0)': "quantise of f32[64]",
    'quantise("a":q8_0[3,64], q4_0)': "quantise of q8_0", 'quantise("a":f32[3,64], q5_0)': "to q5_0",
    'reshape("a":q8_0[4,64], [4, 2, 32])': "rows of q8_0[4,64]", 'scales("a":q4_0[2,48])': "not a whole number of blocks",
}


@pytest.mark.parametrize(("text", "type"), GOOD.items())
def test_recipes_have_types(text: str, type: str) -> None:
    assert str(recipe(text).type) == type


@pytest.mark.parametrize(("text", "says"), BAD.items())
def test_wrong_recipes_fail_where_they_are_made(text: str, says: str) -> None:
    with pytest.raises(Internal) as caught:
        recipe(text)
    assert caught.value.code == "V011" and says in caught.value.says


def test_every_recipe_is_in_the_tables_here() -> None:
    named = {recipe(t).op for t in GOOD}
    assert named == set(RECIPES)
    free = {"load", "view", "fill", "block_rows", "rope_freqs", "rope_cos", "rope_sin"}
    assert {t.partition("(")[0] for t in BAD} | free == set(RECIPES)


def test_every_recipe_but_load_and_view_has_a_meaning() -> None:
    assert set(recipes._RULES) == set(RECIPES) - {"load", "view"}


def test_unknown_recipes() -> None:
    with pytest.raises(Internal) as caught:
        make("fetch", 1)
    assert caught.value.code == "V010" and "fetch" in caught.value.says
    with pytest.raises(Internal) as caught:
        recipes.evaluate(make("view", "w", Tensor("f32", (4,))), Stored({}))
    assert caught.value.code == "R002"
    with pytest.raises(Internal) as caught:
        recipes.evaluate(make("rope_freqs", 1e4, 8, "spiral"), Stored({}))
    assert caught.value.code == "R002" and "spiral" in caught.value.says


def test_loads_are_named_once_in_order() -> None:
    assert recipe('concat("b":f32[4], rows("a":f32[9], 0, 4), "b":f32[4])').loads == ("b", "a")


def test_block_types_know_their_bytes() -> None:
    import gguf
    for name, block in BLOCKS.items():
        assert (block.size, block.nbytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name.upper()]]
        assert Tensor(name, (3, 2 * block.size)).nbytes == 6 * block.nbytes
    assert Tensor("bf16", (3, 5)).nbytes == 30 and Tensor("f64", ()).nbytes == 8 and "q8_0" in ELEMS


class Stored(dict[str, Any]):
    def read(self, name: str) -> Any:
        return self[name]


def got(text: str, **stored: Any) -> Any:
    return recipes.evaluate(recipe(text), Stored(stored))


def test_structural_recipes() -> None:
    a = RNG.normal(size=(8, 6)).astype(np.float32)
    np.testing.assert_array_equal(got('transpose("a":f32[8,6])', a=a), a.T)
    np.testing.assert_array_equal(got('reshape("a":f32[8,6], [4, 12])', a=a), a.reshape(4, 12))
    np.testing.assert_array_equal(got('rows("a":f32[8,6], 2, 5)', a=a), a[2:5])
    np.testing.assert_array_equal(got('concat("a":f32[8,6], "a":f32[8,6])', a=a), np.concatenate([a, a]))
    np.testing.assert_array_equal(got('group_rows("a":f32[8,6], 2, 1, 3)', a=a), a[[1, 2, 5, 6]])


def test_recipes_of_stacks() -> None:
    a, b = RNG.normal(size=(2, 3, 6)).astype(np.float32), RNG.normal(size=(2, 3, 6)).astype(np.float32)
    np.testing.assert_array_equal(got('stack("a":f32[2,3,6], "b":f32[2,3,6])', a=a, b=b), np.stack([a, b]))
    rows = got('interleave("a":f32[2,3,6], "b":f32[2,3,6])', a=a, b=b)
    np.testing.assert_array_equal(rows[:, 0::2], a)
    np.testing.assert_array_equal(rows[:, 1::2], b)
    np.testing.assert_array_equal(got('join("a":f32[2,3,6], "b":f32[2,3,6])', a=a, b=b), np.concatenate([a, b], 1))
    np.testing.assert_array_equal(got('every("a":f32[2,3,6], 1, 3, 2)', a=a), a[:, 1:3:2])
    np.testing.assert_array_equal(got('transpose("a":f32[2,3,6])', a=a), np.stack([x.T for x in a]))
    np.testing.assert_array_equal(got('spread("a":f32[2,3,6], 2)', a=a), np.repeat(a, 2, 2))


@pytest.mark.parametrize(("block", "bits"), [(32, 4), (32, 8), (16, 8)])
def test_rows_of_ones_sum_blocks(block: int, bits: int) -> None:
    """What MatMulNBits makes of them: each row is 1 in its own block of x and 0 elsewhere."""
    packed = got(f"block_rows(3, {block}, {bits})")
    fields = np.stack([(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)], -1).astype(int)
    np.testing.assert_array_equal(fields.reshape(3, -1) - (1 << (bits - 1)), np.eye(3, dtype=int).repeat(block, 1))
    np.testing.assert_array_equal(got("fill(1.5, [2, 3])"), np.full((2, 3), 1.5, np.float32))


@pytest.mark.parametrize("text", [
    'quants(interleave("g":q4_0[8,3,64], "u":q4_0[8,3,64]), 8)', 'spread(scales(join("g":q4_0[8,3,64], "u":q4_0[8,3,64])), 2)',
    'reshape(quants("g":q4_0[8,3,64], 4), [8, 3, 32])', 'cast(stack("a":f16[5,6], "b":f16[5,6], "a":f16[5,6]), f32)',
    'transpose(every("c":f32[8,6,4], 1, 6, 2))',
    'quants(interleave(quantise("f":f16[8,3,64], q8_0), quantise("f":f16[8,3,64], q8_0)), 8)',
    'scales(stack(quantise("h":f32[5,64], q4_0), quantise("h":f32[5,64], q4_0), quantise("h":f32[5,64], q4_0)))',
    'quantise("f":f16[8,3,64], q4_0)', 'scales(concat("g":q4_0[8,3,64], "u":q4_0[8,3,64]))', 'dequant("g":q4_0[8,3,64])',
    'add(scale("c":f32[8,6,4], 0.5), 1.0)'])
@pytest.mark.parametrize("share", [1, 3, 5])
def test_slices_of_experts_read_what_they_need(text: str, share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe that the writer cuts gives the same bytes, and asks for one slice of a stored tensor at a time."""
    raw = RNG.integers(0, 256, (8, 3, 2, 18)).astype(np.uint8)
    raw[..., :2] = RNG.normal(size=(8, 3, 2, 1)).astype(np.float16).view(np.uint8).reshape(8, 3, 2, 2)
    a = RNG.normal(size=(5, 6)).astype(np.float16)
    stored = Stored({"g": raw.reshape(8, 3, 36), "u": raw[::-1].reshape(8, 3, 36), "a": a, "b": a + 1,
                     "c": RNG.normal(size=(8, 6, 4)).astype(np.float32), "f": RNG.normal(size=(8, 3, 64)).astype(np.float16),
                     "h": RNG.normal(size=(5, 64)).astype(np.float32)})
    whole = recipe(text)
    monkeypatch.setattr(slices, "LARGE", share * max(p.type.nbytes for p in whole.parts) // whole.type.sizes[0])
    parts = list(slices.slices(whole))
    assert len(parts) == -(-whole.type.sizes[0] // share) and sum(p.type.sizes[0] for p in parts) == whole.type.sizes[0]
    joined = np.concatenate([recipes.evaluate(p, stored) for p in parts])
    np.testing.assert_array_equal(joined, recipes.evaluate(whole, stored))


@pytest.mark.parametrize("text", [
    'transpose("t":f32[8,6])', 'reshape("t":f32[8,6], [4, 12])', 'unpermute("t":f32[8,6], 2)',
    'concat("t":f32[8,6], unpermute("t":f32[8,6], 2))',
    'rope_freqs(10000.0, 16, default)'])
def test_recipes_that_mix_rows_stay_whole(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "LARGE", 8)
    assert list(slices.slices(recipe(text))) == [recipe(text)]


def test_microscaled_codes_are_in_ggmls_order() -> None:
    codes, exponents = RNG.integers(0, 256, (2, 3, 2, 16), np.uint8), RNG.integers(0, 250, (2, 3, 2), np.uint8)
    exponents[0, 0, 0] = 0
    fp4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    values = np.concatenate([fp4, -fp4])[np.stack([codes & 15, codes >> 4], -1)].reshape(2, 3, 2, 32)
    want = np.ldexp(values, exponents[..., None].astype(int) - 127).reshape(2, 3, 64)
    text = 'mxfp4("a":u8[2,3,2,16], "b":u8[2,3,2])'
    np.testing.assert_array_equal(got(f"dequant({text})", a=codes, b=exponents), want)
    np.testing.assert_array_equal(got(f"dequant(every({text}, 1, 3, 2))", a=codes, b=exponents), want[:, 1::2])
    packed, scales = (got(f"{how})", a=codes, b=exponents) for how in (f"quants({text}, 8", f"scales({text}"))
    np.testing.assert_array_equal((packed.astype(np.float32) - 128) * scales[..., None], want.reshape(2, 3, 2, 32))


def test_unpermute_undoes_what_llama_cpp_does_row_by_row() -> None:
    """convert_hf_to_gguf.py, permute(): row i of a head goes to 2i, row i + d/2 to 2i + 1."""
    heads, d = 3, 8
    a = RNG.normal(size=(heads * d, 5)).astype(np.float32)
    permuted = np.empty_like(a)
    for h in range(heads):
        for i in range(d // 2):
            permuted[h * d + 2 * i] = a[h * d + i]
            permuted[h * d + 2 * i + 1] = a[h * d + i + d // 2]
    np.testing.assert_array_equal(got('unpermute("a":f32[24,5], 3)', a=permuted), a)
    np.testing.assert_array_equal(got('unpermute("a":f32[24], 3)', a=permuted[:, 0]), a[:, 0])


@pytest.mark.parametrize("elem", ["f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize("to", ["f32", "f16", "bf16", "f64"])
def test_casts_round_as_ieee_does(elem: str, to: str) -> None:
    kinds = {"f32": np.float32, "f16": np.float16, "f64": np.float64, "bf16": ml_dtypes.bfloat16}
    rounding = [1.00390625, 1.01171875, 3.0e38, 6.0e-8, 65519.0, -65520.0, 0.0, -0.0, np.inf, -np.inf, np.nan]
    with np.errstate(over="ignore"):
        a = np.concatenate([RNG.normal(size=2000), rounding]).astype(kinds[elem])
        out = got(f'cast("a":{elem}[{a.size}], {to})', a=a.view(np.uint16) if elem == "bf16" else a)
        want = (a.astype(np.float32) if to == "bf16" else a).astype(kinds[to])  # bf16 is the upper half of an f32
    values = out.view(ml_dtypes.bfloat16) if to == "bf16" else out
    assert values.dtype == kinds[to]
    np.testing.assert_array_equal(values.astype(np.float64), want.astype(np.float64))
    assert (np.signbit(values) == np.signbit(want))[~np.isnan(want.astype(np.float64))].all()


def test_arithmetic_is_f32_whatever_is_stored() -> None:
    a, b = RNG.normal(size=64).astype(np.float32), RNG.uniform(1, 8, 64).astype(np.float32)
    np.testing.assert_array_equal(got('add("a":f32[64], 1.0)', a=a), a + np.float32(1))
    np.testing.assert_array_equal(got('scale("a":f32[64], 0.1)', a=a), a * np.float32(0.1))
    np.testing.assert_array_equal(got('divide("a":f32[64], "b":f32[64])', a=a, b=b), a / b)
    half = a.astype(ml_dtypes.bfloat16)
    out = got('add("a":bf16[64], 1.0)', a=half.view(np.uint16)).view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(out, (half.astype(np.float32) + 1).astype(ml_dtypes.bfloat16))


def test_tables_of_cosines_and_sines() -> None:
    freqs = 500.0 ** (-np.arange(4) / 4)
    angle = np.arange(300)[:, None] * freqs
    for part, f in (("cos", np.cos), ("sin", np.sin)):
        table = got(f"rope_{part}(rope_freqs(500.0, 8, default), 300, 1.5)")
        assert table.dtype == np.float32 and table.shape == (300, 4)
        np.testing.assert_allclose(table, 1.5 * f(angle), atol=5e-5)  # the angle itself is rounded to f32


@pytest.mark.parametrize("text", [
    'cast("a":f16[37,64], bf16)', 'quantise("a":f16[37,64], q8_0)', 'quantise("a":f16[37,64], q4_0)',
    'dequant("q":q4_1[37,64])', 'quants("q":q4_1[37,64], 4)', 'scales("q":q4_1[37,64])',
    'offsets("q":q4_1[37,64])'])
@pytest.mark.parametrize("chunk", [1, 64, 65, 200])
def test_slices_of_rows_give_the_whole(text: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = RNG.integers(0, 256, (37, 2, 20)).astype(np.uint8)
    raw[..., :4] = RNG.normal(size=(37, 2, 2)).astype(np.float16).view(np.uint8).reshape(37, 2, 4)
    stored = {"a": RNG.normal(size=(37, 64)).astype(np.float16), "q": raw.reshape(37, 40)}
    whole = got(text, **stored)
    monkeypatch.setattr(recipes, "CHUNK", chunk)
    sliced = got(text, **stored)
    assert sliced.dtype == whole.dtype
    np.testing.assert_array_equal(sliced, whole)
