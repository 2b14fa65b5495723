"""What fold-rope makes of each kind of scaling, against transformers' own definitions written out again here."""
from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import uir

from uaii.backends import recipes, reference
from uaii.ir.core import Weight
from uaii.ir.diag import Internal
from uaii.ir.ops import DynamicFreqs, LengthFreqs, Rope
from uaii.ir.parse import parse
from uaii.passes.base import run
from uaii.passes.fold_rope import KINDS, FoldRope

# transformers, modeling_rope_utils.py, for {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
# "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}, rope_theta 500000, head size 128.
CONTEXT = 64  # of the artifact
LLAMA31 = "llama3(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)"


def folded(theta: float, dim: int, scaling: str, more: str = "") -> tuple[np.ndarray[Any, Any], float]:
    """Frequencies and magnitude after fold-rope."""
    text = f"""graph @g stage=model dims(B, S) (
      %x: f32[B,S,2,{dim}]
      %pos: i64[B,S]
    ) {{
      %r = rope %x, %pos {{theta={theta!r}, dim={dim}{scaling and ', scaling=' + scaling}{more}}} : f32[B,S,2,{dim}]
      return r=%r
    }}"""
    graph = run(parse(text), [FoldRope(CONTEXT)])
    (op,) = (o for o in graph.ops if isinstance(o, Rope))
    assert isinstance(op.freqs, Weight)
    return recipes.evaluate(op.freqs.recipe, uir.RandomSource(graph)), op.magnitude


def plain(theta: float, dim: int) -> list[float]:
    return [theta ** (-2 * i / dim) for i in range(dim // 2)]


def llama3(theta: float, dim: int, factor: float, low: float, high: float, original: int) -> list[float]:
    """_compute_llama3_parameters, one frequency at a time."""
    out = []
    for f in plain(theta, dim):
        wavelength = 2 * math.pi / f
        if wavelength < original / high:
            out.append(f)
        elif wavelength > original / low:
            out.append(f / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append((1 - smooth) * f / factor + smooth * f)
    return out


def yarn(theta: float, dim: int, factor: float, original: int, fast: float = 32, slow: float = 1,
         truncate: bool = True) -> list[float]:
    """_compute_yarn_parameters, one frequency at a time."""
    def correction(rotations: float) -> float:
        return (dim * math.log(original / (rotations * 2 * math.pi))) / (2 * math.log(theta))

    low, high = correction(fast), correction(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    out = []
    for i, f in enumerate(plain(theta, dim)):
        extrapolation = 1 - min(max((i - low) / (high - low), 0), 1)
        out.append(f / factor * (1 - extrapolation) + f * extrapolation)
    return out


def test_every_kind_is_tested_here() -> None:
    assert set(KINDS) == {"default", "linear", "dynamic", "llama3", "yarn", "longrope"}


@pytest.mark.parametrize(("theta", "dim"), [(10000.0, 8), (500000.0, 128), (1e6, 64)])
def test_default_and_linear(theta: float, dim: int) -> None:
    for scaling, factor in (("", 1.0), ("linear(factor=2.5)", 2.5)):
        freqs, magnitude = folded(theta, dim, scaling)
        assert freqs.dtype == np.float32 and magnitude == 1.0
        np.testing.assert_allclose(freqs, np.array(plain(theta, dim)) / factor, rtol=1e-7)


def test_llama3_at_every_frequency() -> None:
    freqs, magnitude = folded(500000.0, 128, LLAMA31)
    assert magnitude == 1.0
    want = llama3(500000.0, 128, 8.0, 1.0, 4.0, 8192)
    np.testing.assert_allclose(freqs, want, rtol=1e-7)
    kinds = [f / p for f, p in zip(want, plain(500000.0, 128), strict=True)]
    assert kinds.count(1.0) == 29 and kinds.count(0.125) == 29  # the rest lies on the ramp between


def test_llama31_8b_has_these_frequencies() -> None:
    """As transformers 5.24 prints them in f32: the first eight are plain, 29 to 35 lie across the ramp."""
    freqs, _ = folded(500000.0, 128, LLAMA31)
    first = [1.0, 0.8146172165870667, 0.663601279258728, 0.5405809879302979, 0.44036662578582764, 0.3587302267551422,
             0.2922278344631195, 0.2380538135766983]
    ramp = [0.0021665706299245358, 0.0013718936825171113, 0.0008567514596506953, 0.0005248460220173001,
            0.0003126936499029398, 0.0001785077911335975, 9.556212171446532e-05]
    np.testing.assert_allclose(freqs[:8], first, rtol=1e-7)
    np.testing.assert_allclose(freqs[29:36], ramp, rtol=2e-6)  # transformers rounds every step to f32


@pytest.mark.parametrize(("theta", "dim", "params", "call"), [
    (10000.0, 64, "factor=4.0", {"factor": 4.0}),
    (10000.0, 128, "factor=40.0, beta_fast=32, beta_slow=1", {"factor": 40.0}),
    (50000.0, 64, "factor=8.0, beta_fast=4.0, beta_slow=0.5, truncate=False",
     {"factor": 8.0, "fast": 4.0, "slow": 0.5, "truncate": False}),
    (10000.0, 64, "factor=4.0, truncate=True", {"factor": 4.0}),
])
def test_yarn_frequencies(theta: float, dim: int, params: str, call: dict[str, Any]) -> None:
    freqs, _ = folded(theta, dim, f"yarn({params}, original_max_position_embeddings=4096)")
    np.testing.assert_allclose(freqs, yarn(theta, dim, original=4096, **call), rtol=2e-7)


def test_yarn_with_an_empty_ramp() -> None:
    """original = 2: both ends of the range are pair 0."""
    freqs, _ = folded(10000.0, 8, "yarn(factor=4.0, original_max_position_embeddings=2)")
    np.testing.assert_allclose(freqs, yarn(10000.0, 8, 4.0, 2), rtol=2e-7)


@pytest.mark.parametrize(("params", "want"), [
    ("factor=4.0", 0.1 * math.log(4.0) + 1),
    ("factor=0.5", 1.0),
    ("factor=4.0, attention_factor=1.5", 1.5),
    ("factor=4.0, mscale=0.7", 0.1 * math.log(4.0) + 1),
    ("factor=40.0, mscale=0.7, mscale_all_dim=1.4",
     (0.07 * math.log(40.0) + 1) / (0.14 * math.log(40.0) + 1)),
    ("factor=40.0, mscale=1.0, mscale_all_dim=1.0", 1.0),
    ("factor=40.0, attention_factor=2.0, mscale=0.7, mscale_all_dim=1.4", 2.0),
])
def test_yarn_magnitude(params: str, want: float) -> None:
    _, magnitude = folded(10000.0, 64, f"yarn({params}, original_max_position_embeddings=4096)")
    assert magnitude == pytest.approx(want, rel=1e-15)
    _, twice = folded(10000.0, 64, f"yarn({params}, original_max_position_embeddings=4096)", ", magnitude=2.0")
    assert twice == pytest.approx(2 * want, rel=1e-15)


def test_divisors_divide_plain_frequencies() -> None:
    text = """graph @g stage=model dims(B, S) (
      %x: f32[B,S,2,8]
      %pos: i64[B,S]
    ) {
      @d : f32[4] = "rope_freqs.weight":f32[4]
      %r = rope %x, %pos, divisors=@d {theta=10000.0, dim=8} : f32[B,S,2,8]
      return r=%r
    }"""
    graph = run(parse(text), [FoldRope(CONTEXT)])
    source = uir.RandomSource(graph)
    got = uir.weight_values(graph, "rope.freqs", source)
    np.testing.assert_allclose(got, np.array(plain(10000.0, 8)) / source.read("rope_freqs.weight"), rtol=2e-7)


@pytest.mark.parametrize("last", [3, 15, 16, 100])
def test_dynamic_follows_the_longest_position(last: int) -> None:
    """_compute_dynamic_ntk_parameters: nothing changes until the running length passes max_position_embeddings."""
    graph = run(parse("""graph @g stage=model dims(B, S) (
      %x: f32[B,S,2,8]
      %pos: i64[B,S]
    ) {
      %r = rope %x, %pos {theta=10000.0, dim=8, scaling=dynamic(factor=2.0, max_position_embeddings=16)} : f32[B,S,2,8]
      return r=%r
    }"""), [FoldRope(CONTEXT)])
    (op,) = (o for o in graph.ops if isinstance(o, DynamicFreqs))
    got = reference.dynamic_freqs(np.array([[0, last]]), **op.attrs)
    length = max(last + 1, 16)
    base = 10000.0 * ((2.0 * length / 16) - (2.0 - 1)) ** (8 / (8 - 2))
    np.testing.assert_allclose(got, plain(base, 8), rtol=1e-14)
    assert (length > 16) == (got[1] < 0.0999)


# --- longrope: one set of factors for short texts, one for long

SHORT, LONG = [1.0, 1.1, 1.25, 2.0], [1.0, 2.0, 5.0, 12.5]


def longrope(original: int, more: str = "") -> str:
    return f"longrope(short_factor={SHORT}, long_factor={LONG}, original_max_position_embeddings={original}, " \
           f"factor=8.0{more})"


def rotation(scaling: str) -> str:
    return f"""graph @g stage=model dims(B, S) (
      %x: f32[B,S,2,8]
      %pos: i64[B,S]
      %length: i64[]
    ) {{
      %r = rope %x, %pos, length=%length {{theta=500.0, dim=8, scaling={scaling}}} : f32[B,S,2,8]
      return r=%r
    }}"""


@pytest.mark.parametrize("original", [CONTEXT, CONTEXT + 1])
def test_longrope_within_the_original_length_is_a_constant(original: int) -> None:
    graph = run(parse(rotation(longrope(original))), [FoldRope(CONTEXT)])
    freqs = recipes.evaluate(graph.weights["rope.freqs"].recipe, uir.RandomSource(graph))
    np.testing.assert_allclose(freqs, np.array(plain(500.0, 8)) / SHORT, rtol=1e-7)
    assert not any(isinstance(o, LengthFreqs) for o in graph.ops)
    assert "within the original" in str(graph.weights["rope.freqs"].loc)


@pytest.mark.parametrize(("first", "last", "length", "far"), [
    (0, 0, 0, False), (0, 15, 0, False), (0, 16, 0, True), (0, 63, 0, True), (15, 15, 0, False), (17, 17, 0, True),
    (0, 7, 16, False), (0, 7, 17, True), (8, 15, 40, True), (8, 20, 21, True),
])
def test_longrope_follows_each_row(first: int, last: int, length: int, far: bool) -> None:
    """transformers: long factors for every position once max(position) + 1 passes the original length."""
    graph = run(parse(rotation(longrope(16))), [FoldRope(CONTEXT)])
    (op,) = (o for o in graph.ops if isinstance(o, LengthFreqs))
    table = recipes.evaluate(graph.weights["rope.freqs"].recipe, uir.RandomSource(graph))
    rows = np.array([[first, last], [0, 3]])
    got = reference.length_freqs(rows, np.int64(length), table, **op.attrs)
    for row, is_far in zip(got, (far, length > 16), strict=True):
        np.testing.assert_allclose(row, np.array(plain(500.0, 8)) / (LONG if is_far else SHORT), rtol=1e-7)


@pytest.mark.parametrize(("first", "last"), [(16, 16), (1, 16), (10, 40)])
def test_longrope_does_not_mix_cached_keys(first: int, last: int) -> None:
    table = np.array([SHORT, LONG])
    with pytest.raises(Internal, match="R005"):
        reference.length_freqs(np.array([[0, 5], [first, last]]), np.int64(0), table, 16)


@pytest.mark.parametrize(("more", "original", "want"), [
    ("", 32, math.sqrt(1 + math.log(8.0) / math.log(32))), (", attention_factor=1.5", 32, 1.5),
    ("", 128, math.sqrt(1 + math.log(8.0) / math.log(128))),
])
def test_longrope_magnitude(more: str, original: int, want: float) -> None:
    """The same for short and long texts: 128 folds, 32 follows the length."""
    graph = run(parse(rotation(longrope(original, more))), [FoldRope(CONTEXT)])
    (op,) = (o for o in graph.ops if isinstance(o, Rope))
    assert op.magnitude == pytest.approx(want, rel=1e-15)
    shrunk = run(parse(rotation(longrope(original).replace("8.0", "0.5"))), [FoldRope(CONTEXT)])
    assert [o.magnitude for o in shrunk.ops if isinstance(o, Rope)] == [1.0]


@pytest.mark.parametrize(("original", "stored"), [(CONTEXT - 1, "long"), (CONTEXT, "short")])
def test_stored_longrope_factors_are_chosen_by_the_context(original: int, stored: str) -> None:
    """llama.cpp, get_rope_factors: by the size of the context, whatever the text's length."""
    says = f"theta=500.0, dim=8, scaling=longrope(original_max_position_embeddings={original}), magnitude=1.25"
    text = f"""graph @g stage=model dims(B, S) (
      %x: f32[B,S,2,8]
      %pos: i64[B,S]
    ) {{
      @short : f32[4] = "short":f32[4]
      @long : f32[4] = "long":f32[4]
      %r = rope %x, %pos, divisors=@short, long_divisors=@long {{{says}}} : f32[B,S,2,8]
      return r=%r
    }}"""
    graph = run(parse(text), [FoldRope(CONTEXT)])
    source = uir.RandomSource(graph)
    got = uir.weight_values(graph, "rope.freqs", source)
    np.testing.assert_allclose(got, np.array(plain(500.0, 8)) / source.read(stored), rtol=2e-7)
    assert [o.magnitude for o in graph.ops if isinstance(o, Rope)] == [1.25]
    assert f"{stored} factors for every text" in str(graph.weights["rope.freqs"].loc)
