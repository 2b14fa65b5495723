"""Whole tiny models: every graph on the way means the same, and onnxruntime computes what the last one means."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_run
import pytest
import uir
from family_cases.llama import LLAMA3, PLAIN, YARN
from quantised_gguf import MIXED, write_quantised
from tiny_models import Case, write_folder

from uaii.backends import reference
from uaii.compiler import Compiled, through_passes
from uaii.ir.core import Graph

DYNAMIC = PLAIN.set("dynamic", rope_scaling={"type": "dynamic", "factor": 4.0}, max_position_embeddings=32)
CASES = {
    "plain": PLAIN,
    "biases, tied, bf16": PLAIN.set("x", attention_bias=True, mlp_bias=True, tie_word_embeddings=True).but(dtype="BF16"),
    "narrow heads": PLAIN.set("x", head_dim=8, num_attention_heads=6, num_key_value_heads=3), "dynamic": DYNAMIC,
    "llama3": PLAIN.set("x", rope_scaling={"rope_type": "llama3", **LLAMA3}), "yarn": PLAIN.set("x", rope_scaling=YARN),
}


def step(graph: Graph, past: int, new: int, seed: int = 0) -> dict[str, Any]:
    """Feeds for `new` tokens after `past` random keys and values."""
    rng = np.random.default_rng([past, new, seed])
    made: dict[str, Any] = {"input_ids": rng.integers(0, 199, (1, new)), "attention_mask": np.ones((1, past + new), np.int64)}
    for v in graph.inputs:
        if v.name.startswith("past"):
            made[v.name] = rng.normal(size=[{"B": 1, "P": past}.get(str(d), d) for d in v.type.shape]).astype(np.float32)
    return made


def compiled(case: Case, folder: Path) -> Compiled:
    return through_passes(write_folder(folder, case), keep=True)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("past", "new"), [(0, 12), (40, 1)])
def test_every_pass_keeps_the_meaning_and_onnxruntime_has_it(name: str, past: int, new: int, tmp_path: Path) -> None:
    done = compiled(CASES[name], tmp_path / "checkpoint")
    given = step(done.graph, past, new)
    # A scaled rotation has its meaning from fold-rope on.
    graphs = [g for _, g in done.snapshots if uir.has_meaning(g)]
    assert len(graphs) >= len(done.snapshots) - 1
    first = reference.evaluate(graphs[0], given, done.checkpoint)
    for graph in (graphs[len(graphs) // 2], graphs[-1]):
        for a, b in zip(reference.evaluate(graph, given, done.checkpoint), first, strict=True):
            assert onnx_run.far(a, b) < 2e-5  # tables of cosines are f32
    (tmp_path / "artifact").mkdir()
    got = onnx_run.run(done.graph, done.checkpoint, given, tmp_path / "artifact")
    for a, b in zip(got, first, strict=True):
        assert onnx_run.far(a, b) < 2e-5


def test_the_reference_of_each_step_is_exact_without_tables(tmp_path: Path) -> None:
    """Passes that round nothing change nothing beyond f64: from fold-rope to just before the tables of cosines."""
    done = compiled(PLAIN, tmp_path)
    given = step(done.graph, 5, 4)
    stages = dict(done.snapshots)
    a = reference.evaluate(stages["fold-rope"], given, done.checkpoint)
    for name in ("fold-norm-offset", "enter-core", "lower-attention"):
        for x, y in zip(reference.evaluate(stages[name], given, done.checkpoint), a, strict=True):
            assert onnx_run.far(x, y) < 1e-13
    rotated = reference.evaluate(stages["fuse-rope"], given, done.checkpoint)
    for name in ("fold-heads", "fuse-qkv", "fuse-gate-up", "fuse-skip-norm", "merge-duplicates", "share-tied"):
        for x, y in zip(reference.evaluate(stages[name], given, done.checkpoint), rotated, strict=True):
            assert onnx_run.far(x, y) < 1e-13


@pytest.mark.parametrize(("weights", "within"), [("f32", 2e-5), ("auto", 3e-2)])
def test_quantised_models(weights: str, within: float, tmp_path: Path) -> None:
    """Packed or dequantised, the reference sees the same values; onnxruntime rounds activations to int8 where packed."""
    file = write_quantised(tmp_path / "mixed.gguf", PLAIN, MIXED)
    done = through_passes(file, weights=weights, keep=True)
    given = step(done.graph, 6, 1)
    want = reference.evaluate(done.snapshots[0][1], given, done.checkpoint)
    for a, b in zip(reference.evaluate(done.graph, given, done.checkpoint), want, strict=True):
        assert onnx_run.far(a, b) < 1e-5
    kinds = {op.name for op in done.graph.ops}
    assert ({"matmul_nbits", "embedding_nbits", "cut", "gemm"} <= kinds) == (weights == "auto")
    got = onnx_run.run(done.graph, done.checkpoint, given, tmp_path)
    for a, b in zip(got, want, strict=True):
        assert onnx_run.far(a, b) < within


def test_the_cache_carries_a_prompt_over(tmp_path: Path) -> None:
    """Prefill of 10 tokens equals prefill of 9 and a step of one, through the emitted graph's own cache."""
    done = compiled(PLAIN, tmp_path / "checkpoint")
    session = onnx_run.session(done.graph, done.checkpoint, tmp_path)
    ids = np.random.default_rng(2).integers(0, 199, (1, 10))
    names = [o.name for o in session.get_outputs()]
    empty = {k: x for k, x in step(done.graph, 0, 1).items() if k.startswith("past")}

    def call(tokens: Any, cache: dict[str, Any], total: int, keep: int) -> dict[str, Any]:
        feeds = {"input_ids": tokens, "attention_mask": np.ones((1, total), np.int64), "num_logits_to_keep": np.array(keep)}
        return dict(zip(names, session.run(None, feeds | cache), strict=True))

    whole = call(ids, empty, 10, 0)
    assert whole["logits"].shape == (1, 10, 199)
    part = call(ids[:, :9], empty, 9, 1)
    assert part["logits"].shape == (1, 1, 199) and onnx_run.far(part["logits"], whole["logits"][:, 8:9]) < 1e-5
    cache = {k.replace("present", "past_key_values"): x for k, x in part.items() if k != "logits"}
    last = call(ids[:, 9:], cache, 10, 1)
    for name in names:
        assert onnx_run.far(last[name], whole[name][:, -1:] if name == "logits" else whole[name]) < 1e-5
