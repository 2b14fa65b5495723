"""Latent attention absorbed and written out: one result, one cache, and the length at which a step changes form."""
from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_run
import onnxruntime as ort
import pytest
import uir

from uaii.backends.onnx.capabilities import CPU
from uaii.backends.onnx.emit import Body, emit
from uaii.backends.onnx.rules import latent
from uaii.backends.onnx.rules.latent import Sizes
from uaii.ir.core import Graph
from uaii.ir.parse import parse

SIZES = {  # heads 4 at a time, 3, 2 and 1; widths of keys and values that differ, either one wider, padded or not
    "usual": Sizes(4, 16, 64, 8, 16), "wide values": Sizes(16, 8, 32, 8, 20), "padded": Sizes(6, 12, 32, 8, 6),
    "narrow values": Sizes(10, 24, 48, 8, 8), "odd": Sizes(7, 12, 36, 4, 12),
}
STEPS = [(0, 1), (0, 3), (0, 40), (1, 1), (5, 7), (9, 30), (60, 50), (200, 33)]  # past, new
CLOSE = 4e-6  # of the largest value: sums of products in f32
FORMS = ("absorbed", "expanded")


def graph(z: Sizes) -> Graph:
    """One layer of these sizes."""
    h, n, c, r, v = z.heads, z.plain, z.latent, z.turned, z.value
    return parse(
        f"graph @g stage=ort dims(B, S, P, T=P+S) (%past_k: f32[B,1,P,{z.row}], %past_v: f32[B,1,P,{z.row}], %lengths: i32[B], "
        f"%total: i32[], %q: f32[B,S,{h},{n}], %t: f32[B,S,{h},{r}], %c: f32[B,S,{c}], %k: f32[B,S,1,{r}]) {{\n"
        f'  @k_up : f32[{h},{n},{c}] = "k":f32[{h},{n},{c}]\n  @v_up : f32[{h},{v},{c}] = "v":f32[{h},{v},{c}]\n'
        "  %y, %rows, %same = latent_gqa %q, %t, %c, %k, @k_up, @v_up, %past_k, %past_v, %lengths, %total {scale=0.3} : "
        f"f32[B,S,{h * v}], f32[B,1,T,{z.row}], f32[B,1,T,{z.row}]\n  return y=%y, rows=%rows, same=%same\n}}")


def step(z: Sizes, past: int, new: int, batch: int = 1) -> dict[str, Any]:
    """Inputs of one step."""
    rng = np.random.default_rng([past, new, batch])
    held = rng.normal(size=(batch, 1, past, z.row)).astype(np.float32)
    shapes = {"q": (z.heads, z.plain), "t": (z.heads, z.turned), "c": (z.latent,), "k": (1, z.turned)}
    return {n: rng.normal(size=(batch, new, *s)).astype(np.float32) for n, s in shapes.items()} | {
        "past_k": held, "past_v": held, "lengths": np.full(batch, past + new - 1, np.int32),
        "total": np.array(past + new, np.int32)}


def forced(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on emitted layers have that form at any length."""
    monkeypatch.setattr(latent, "_pays", lambda b, t: b.const(np.array([form == "expanded"])))


def sessions(z: Sizes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, ort.InferenceSession]:
    made = {}
    for form in FORMS:
        forced(form, monkeypatch)
        (folder / form).mkdir()
        made[form] = onnx_run.session(graph(z), uir.RandomSource(graph(z)), folder / form)
    return made


def in_place(session: ort.InferenceSession, given: dict[str, Any], rows: np.ndarray) -> np.ndarray:
    """The result of a step whose past and present are `rows` [B,1,capacity,row], all four the same memory."""
    binding, out = session.io_binding(), np.empty((*given["c"].shape[:2], session.get_outputs()[0].shape[-1]), np.float32)
    where = ("cpu", 0, np.float32, list(rows.shape), rows.ctypes.data)
    for name in ("past_k", "past_v"):
        binding.bind_input(name, *where)
    values = {n: ort.OrtValue.ortvalue_from_numpy(x) for n, x in given.items() if not n.startswith("past")}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for value in session.get_outputs()[1:]:
        binding.bind_output(value.name, *where)
    binding.bind_output("y", "cpu", 0, np.float32, list(out.shape), out.ctypes.data)
    session.run_with_iobinding(binding)
    return out


@pytest.mark.parametrize("name", SIZES)
def test_both_forms_are_what_latent_attention_means(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    z = SIZES[name]
    for form, session in sessions(z, tmp_path, monkeypatch).items():
        for past, new in STEPS:
            given = step(z, past, new)
            wanted = onnx_run.means(graph(z), uir.RandomSource(graph(z)), given)
            got = session.run(None, given)
            assert onnx_run.far(got[0], wanted[0]) <= CLOSE, (form, past, new)
            for rows in got[1:]:
                np.testing.assert_array_equal(rows, wanted[1].astype(np.float32))


@pytest.mark.parametrize("name", SIZES)
def test_both_write_the_new_rows_into_the_bound_buffer_and_nothing_else(name: str, tmp_path: Path,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies behind the text's end is NaN: it is neither read nor touched."""
    z = SIZES[name]
    both = sessions(z, tmp_path, monkeypatch)
    for past, new in STEPS:
        given = step(z, past, new)
        held = []
        for session in both.values():
            rows = np.full((1, 1, past + new + 37, z.row), np.nan, np.float32)
            rows[:, :, :past] = given["past_k"]
            got = in_place(session, given, rows)
            assert onnx_run.far(got, session.run(None, given)[0]) <= CLOSE
            held.append(rows)
        np.testing.assert_array_equal(held[0], held[1])
        added = np.concatenate([given["c"], given["k"][:, :, 0]], -1)
        np.testing.assert_array_equal(held[0][0, 0, past:past + new], added[0])
        assert np.isnan(held[0][0, 0, past + new:]).all()


@pytest.mark.parametrize("name", SIZES)
def test_rows_of_a_padded_batch_are_their_own_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    z, counts = SIZES[name], np.array([40, 1, 25, 39], np.int32)
    given = step(z, 0, 40, batch=4)
    given["lengths"] = counts - 1
    for row, count in enumerate(counts):
        for what in ("q", "t", "c", "k"):
            given[what][row, count:] = 1e3  # padding that shows
    for session in sessions(z, tmp_path, monkeypatch).values():
        rows = np.full((4, 1, 64, z.row), np.nan, np.float32)
        got = in_place(session, given, rows)
        for row, count in enumerate(counts):
            alone = {n: x[row:row + 1, :count] for n, x in given.items() if n in ("q", "t", "c", "k")}
            alone |= {n: x[:1] for n, x in given.items() if n.startswith("past")}
            alone |= {"lengths": np.array([count - 1], np.int32), "total": np.array(count, np.int32)}
            wanted = session.run(None, alone)
            assert onnx_run.far(got[row, :count], wanted[0][0]) <= CLOSE
            np.testing.assert_array_equal(rows[row, :, :count], wanted[1][0])


@pytest.mark.parametrize("name", SIZES)
def test_a_text_is_the_same_by_token_by_chunk_and_at_once(name: str, tmp_path: Path) -> None:
    z, count = SIZES[name], 150
    session, given = onnx_run.session(graph(z), uir.RandomSource(graph(z)), tmp_path), step(z, 0, 150)
    whole = onnx_run.means(graph(z), uir.RandomSource(graph(z)), given)[0]
    for size in (1, 7, 64, count):
        rows, parts = np.full((1, 1, 256, z.row), np.nan, np.float32), []
        for at in range(0, count, size):
            part = {n: np.ascontiguousarray(given[n][:, at:at + size]) for n in ("q", "t", "c", "k")}
            end = at + part["c"].shape[1]
            part |= {"lengths": np.array([end - 1], np.int32), "total": np.array(end, np.int32)}
            parts.append(in_place(session, part, rows))
        assert onnx_run.far(np.concatenate(parts, 1), whole) <= CLOSE, size


def test_a_step_is_written_out_where_that_takes_fewer_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absorbed results are doubled here, so that they show."""
    z, absorbed = SIZES["usual"], latent._absorbed

    def doubled(b: Body, sizes: Sizes, scale: float, outputs: tuple[str, ...]) -> None:
        absorbed(b, sizes, scale, ("once", *outputs[1:]))
        b.node("Add", "once", "once", outputs=outputs[0])

    monkeypatch.setattr(latent, "_absorbed", doubled)
    session, t = onnx_run.session(graph(z), uir.RandomSource(graph(z)), tmp_path), z.crossing
    assert t == 27  # 1.25 * 64 * (16 + 16) / (2 * (72 - 24)), rounded up
    seen = set()
    for past, new in itertools.product((0, 1, 3, 10, 100, 1000), (1, 2, 6, 7, 9, 14, 20, 26, 27, 28, 40, 90)):
        given = step(z, past, new)
        wanted = onnx_run.means(graph(z), uir.RandomSource(graph(z)), given)[0]
        out = new * (new + 2 * past) > 2 * t * past + (t // 4) ** 2
        assert onnx_run.far(session.run(None, given)[0], wanted if out else 2 * wanted) <= CLOSE, (past, new)
        seen.add((past, out))
    assert seen == set(itertools.product((0, 1, 3, 10, 100, 1000), (True, False)))


@pytest.mark.parametrize(("sizes", "tokens"), [
    (Sizes(16, 128, 512, 64, 128), 214), (Sizes(128, 128, 512, 64, 128), 214), (Sizes(40, 64, 256, 32, 64), 107),
    (Sizes(4, 8, 16, 8, 8), 20), (Sizes(4, 1, 64, 8, 1), 8), (Sizes(4, 16, 16, 8, 16), 0), (Sizes(4, 24, 16, 8, 8), 0)])
def test_the_length_from_which_a_long_past_is_written_out(sizes: Sizes, tokens: int) -> None:
    """Of published sizes, DeepSeek-V2-Lite's and V3's and MiniCPM3's, and of some at the ends: a step of one token never is."""
    assert sizes.crossing == tokens


def test_a_layer_that_never_gains_has_one_form(tmp_path: Path) -> None:
    z = Sizes(4, 16, 16, 8, 16)
    assert [n.op_type for n in nodes(z)].count("If") == 0
    given = step(z, 9, 30)
    wanted = onnx_run.means(graph(z), uir.RandomSource(graph(z)), given)
    assert onnx_run.far(onnx_run.run(graph(z), uir.RandomSource(graph(z)), given, tmp_path)[0], wanted[0]) <= CLOSE


def nodes(z: Sizes) -> list[onnx.NodeProto]:
    """Of the layer's function, without those of its branches."""
    model, _ = emit(graph(z))
    assert [n.op_type for n in model.graph.node if n.domain == "ai.uaii"] == ["LatentAttention"]
    return list(model.functions[0].node)


@pytest.mark.parametrize("name", SIZES)
def test_a_layer_is_one_node_with_a_choice_inside(name: str) -> None:
    assert [n.op_type for n in nodes(SIZES[name])].count("If") == 1
    assert all(CPU.refuses(op) is None for op in graph(SIZES[name]).ops)


def test_several_rows_of_several_tokens_after_a_past_stop_in_either_form(tmp_path: Path,
                                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    for session in sessions(SIZES["usual"], tmp_path, monkeypatch).values():
        with pytest.raises(Exception, match="batch_size must be 1 when sequence_length > 1 and past context is given"):
            session.run(None, step(SIZES["usual"], 4, 3, batch=2))
