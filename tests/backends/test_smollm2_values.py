"""Every tensor of the real artifact holds the values of the real file: unpacked, put back in order, compared."""
from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import pytest
from onnx.external_data_helper import uses_external_data

from uaii.compiler import Artifact

Array = Any
HEADS, KV_HEADS, LAYERS, WIDTH, FFN = 9, 3, 30, 576, 1536


@pytest.fixture(scope="module")
def held(smollm2_artifact: Artifact) -> dict[str, Array]:
    """The artifact's initializers by name, mapped from the data file."""
    folder = smollm2_artifact.folder
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    kinds = {onnx.TensorProto.FLOAT: np.float32, onnx.TensorProto.UINT8: np.uint8}
    out = {}
    for t in model.graph.initializer:
        if uses_external_data(t):
            at = {e.key: e.value for e in t.external_data}
            assert int(at["offset"]) % 64 == 0
            out[t.name] = np.memmap(folder / at["location"], kinds[t.data_type], "r", int(at["offset"]), tuple(t.dims))
            assert out[t.name].nbytes == int(at["length"])
    return out


@pytest.fixture(scope="module")
def stored(smollm2: Path) -> dict[str, gguf.ReaderTensor]:
    return {t.name: t for t in gguf.GGUFReader(smollm2).tensors}


def values(t: gguf.ReaderTensor) -> Array:
    """f32 [out, in], by the gguf package."""
    return gguf.dequantize(t.data, t.tensor_type)


def halves_order(rows: int, heads: int) -> Array:
    """Row r of the result is row order[r] of the file: llama.cpp keeps the two halves of a head interleaved."""
    d = rows // heads
    return np.array([h * d + (2 * i if i < d // 2 else 2 * (i - d // 2) + 1) for h in range(heads) for i in range(d)])


def unpack(held: dict[str, Array], name: str) -> Iterator[tuple[Array, Array]]:
    """(s*(q - zero), offset or 0) of each row in turn, f32: what the kernels multiply with and add."""
    quants, scales = held[f"weights/{name}.quants"], held[f"weights/{name}.scales"]
    offsets = held.get(f"weights/{name}.offsets")
    if offsets is not None and len(quants) > len(offsets):  # rows that sum x over each block
        sums, ones = quants[len(offsets):], scales[len(offsets):]
        assert np.array_equal(sums == 0x99, np.eye(len(sums), dtype=bool)[..., None].repeat(16, -1))
        assert np.isin(sums, (0x88, 0x99)).all() and (ones == 1).all()
        quants, scales = quants[:len(offsets)], scales[:len(offsets)]
    n, blocks, width = quants.shape
    if width == 16:
        q = np.empty((n, blocks, 32), np.float32)
        q[..., 0::2], q[..., 1::2] = quants & 15, quants >> 4
        q -= 8
    else:
        q = quants.astype(np.float32) - 128
    q *= np.asarray(scales)[..., None]
    yield q.reshape(n, -1), None if offsets is None else np.repeat(offsets, 32, axis=1)


def assert_holds(held: dict[str, Array], name: str, want: Array, kind: gguf.GGMLQuantizationType) -> None:
    ((product, offset),) = unpack(held, name)
    if offset is None:
        assert kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0)
        assert np.array_equal(product, want), name
        return
    assert kind == gguf.GGMLQuantizationType.Q4_1
    # s*(q-8) is exact in f32; the offset m + 8s, the sum here and the file's s*q + m are rounded once each.
    size = np.maximum(np.maximum(np.abs(product), np.abs(offset)), np.abs(want))
    assert (np.abs(product + offset - want) <= 1.5 * np.spacing(size)).all(), name


def test_every_stored_tensor_is_in_the_report(stored: dict[str, Any], smollm2_artifact: Artifact) -> None:
    report = {t["tensor"]: t for t in json.loads((smollm2_artifact.folder / "uaii.json").read_text())["tensors"]}
    assert set(report) == set(stored) and len(report) == 272
    packed = {n for n, t in report.items() if t["held"] == "packed"}
    assert packed == {n for n, t in stored.items() if t.tensor_type != gguf.GGMLQuantizationType.F32}
    assert all(report[n]["bytes"] == t.n_bytes for n, t in stored.items())


@pytest.mark.parametrize("i", range(LAYERS))
def test_a_layer_holds_the_files_values(i: int, held: dict[str, Array], stored: dict[str, Any]) -> None:
    def of(name: str) -> Any:
        return stored[f"blk.{i}.{name}.weight"]

    q, k, v = of("attn_q"), of("attn_k"), of("attn_v")
    stacked = np.concatenate([values(q)[halves_order(WIDTH, HEADS)], values(k)[halves_order(192, KV_HEADS)], values(v)])
    assert_holds(held, f"{i}.attn.qkv", stacked, q.tensor_type)
    assert_holds(held, f"{i}.attn.o", values(of("attn_output")), of("attn_output").tensor_type)
    gate_up = np.concatenate([values(of("ffn_gate")), values(of("ffn_up"))])
    assert_holds(held, f"{i}.ffn.gate_up", gate_up, of("ffn_up").tensor_type)
    assert_holds(held, f"{i}.ffn.down", values(of("ffn_down")), of("ffn_down").tensor_type)
    for ours, theirs in (("attn_norm", "attn_norm"), ("ffn_norm", "ffn_norm")):
        np.testing.assert_array_equal(held[f"weights/{i}.{ours}"], values(of(theirs)))


def test_the_table_and_the_last_norm(held: dict[str, Array], stored: dict[str, Any]) -> None:
    table = stored["token_embd.weight"]
    want = values(table)
    assert_holds(held, "embed", want, table.tensor_type)
    np.testing.assert_array_equal(held["weights/norm"], values(stored["output_norm.weight"]))
    rows, quants = held["weights/embed.rows"], held["weights/embed.quants"]
    assert rows.offset == quants.offset and rows.filename == quants.filename  # tied: the bytes are there once
    assert rows.shape == (49152, WIDTH) and quants.shape == (49152, WIDTH // 32, 32)


def test_nothing_else_is_held(held: dict[str, Array]) -> None:
    packed = [f"{i}.{n}.{p}" for i in range(LAYERS) for n in ("attn.qkv", "attn.o", "ffn.gate_up", "ffn.down")
              for p in ("quants", "scales", "offsets")]
    norms = [f"{i}.{n}" for i in range(LAYERS) for n in ("attn_norm", "ffn_norm")]
    once = ["embed.quants", "embed.rows", "embed.scales", "norm"]
    assert {n.removeprefix("weights/") for n in held} == {*packed, *norms, *once}


def test_the_rotation_is_of_the_files_base_over_the_whole_context(smollm2_artifact: Artifact) -> None:
    graph = onnx.load(smollm2_artifact.folder / "model.onnx", load_external_data=False).graph
    small = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer if not uses_external_data(t)}
    (freqs,) = (x for n, x in small.items() if n.startswith("rope/") and n.endswith("/freqs"))
    np.testing.assert_allclose(freqs, 100000.0 ** (-np.arange(32) / 32), rtol=1e-7)
    assert small["rope/0/start"] == 0 and small["rope/0/stop"] == 8192 and small["rope/0/step"] == 1
    assert {n.name for n in graph.node} >= {"/weights/rope.cos/Cos", "/weights/rope.sin/Sin"}
