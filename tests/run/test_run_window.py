"""Layers with a window get their cache from a later key on: the logits are those of the whole cache."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import parity
import pytest
from family_cases import gemma2, gemma3, gpt_oss, llama, mistral
from tiny_models import write_folder

from uaii.backends.ort import cache as caches
from uaii.backends.ort import session as module
from uaii.backends.ort.cache import SharedCache
from uaii.backends.ort.generate import generate_batch
from uaii.backends.ort.session import Session
from uaii.compiler import compile_model
from uaii.ir.diag import Diagnostic

CASES = {"every layer, rotated in the kernel": mistral.SHORT, "some layers, two rotations": gemma3.PLAIN,
         "a cap": gemma2.PLAIN, "sinks": gpt_oss.PLAIN}
IDS = np.random.default_rng(5).integers(0, 60, 100).tolist()


@pytest.fixture(scope="module", params=CASES)
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("window")
    compile_model(write_folder(folder / "model", CASES[request.param]), folder / "out", weights="f32")
    return folder / "out"


@pytest.fixture(params=[1, 3, 64])
def stride(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(caches, "STRIDE", request.param)
    return int(request.param)


@pytest.fixture()
def session(artifact: Path) -> Session:
    return Session.open(artifact, threads=1)


def by_steps(session: Session, ids: list[int]) -> np.ndarray:
    cache = session.cache()
    return np.array([session.step(np.array([[t]]), None, cache)[0, 0] for t in ids])


def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on every layer gets its whole cache."""
    monkeypatch.setattr(SharedCache, "start", lambda self, row: 0)


def test_steps_are_those_of_the_whole_cache(session: Session, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    got = by_steps(session, IDS)
    whole(monkeypatch)
    assert parity.difference(got, by_steps(session, IDS)) < 1e-5


@pytest.mark.parametrize("size", [1, 5, 8, 17])
def test_chunks_are_those_of_the_whole_cache(session: Session, stride: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_chunks() -> np.ndarray:
        cache = session.cache(capacity=1)
        return np.concatenate([session.prefill(IDS[i:i + size], cache, keep_logits=0) for i in range(0, len(IDS), size)])

    got = by_chunks()
    whole(monkeypatch)
    assert parity.difference(got, by_chunks()) < 1e-5
    assert parity.difference(got, session.logits(IDS)) < 1e-5


def test_what_is_rewound_before_the_window_is_attended_again(session: Session, stride: int) -> None:
    cache = session.cache()
    session.prefill(IDS[:60], cache)
    by_now = [cache.start(None)]
    cache.rewind(12)
    got = session.prefill(IDS[70:90], cache, keep_logits=0)
    by_now.append(cache.start(None))
    assert by_now[1] < by_now[0] or stride == 64
    assert parity.difference(got, session.logits(IDS[:12] + IDS[70:90])[12:]) < 1e-5


def test_rows_of_many_lengths_decode_together(session: Session, stride: int) -> None:
    prompts = [IDS[:n] for n in (80, 1, 33, 90)]
    alone = [generate_batch(session, [p], max_new_tokens=16, ignore_eos=True)[0].tokens for p in prompts]
    assert [r.tokens for r in generate_batch(session, prompts, max_new_tokens=16, ignore_eos=True)] == alone


def test_kept_rows_keep_their_keys(session: Session, stride: int) -> None:
    cache = session.cache(batch=3, capacity=50)
    assert isinstance(cache, SharedCache)
    for row, count in enumerate((40, 45, 50)):
        session.prefill(IDS[:count], cache, row=row)
    cache.keep([2, 0])
    got = session.step(np.array([[IDS[50]], [IDS[40]]]), None, cache)
    for row, count in enumerate((50, 40)):
        assert parity.difference(got[row], session.logits(IDS[:count + 1])[-1:]) < 1e-5


@pytest.mark.parametrize(("held", "first"), [(0, 0), (7, 0), (8, 1), (9, 2), (40, 33)])
def test_the_first_key_is_the_oldest_in_the_window(held: int, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query at position p with a window of 8 attends p - 7 to p."""
    monkeypatch.setattr(caches, "STRIDE", 1)
    slots = [caches.Slot(f"past_key_values.{i}.key", f"present.{i}.key", np.dtype(np.float32), 2, 8, window=w)
             for i, w in enumerate((8, 0, 4))]
    cache = SharedCache(slots, 2, 64, "cpu", None)
    cache.ids = [[1] * held, [1] * 50]
    assert (cache.start(0), cache.start(1), cache.start(None)) == (first, 43, first)


@pytest.mark.parametrize("wrong", [1, -64])
def test_another_key_would_be_seen(session: Session, wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: one key too few, or a binding that does not begin where the graph is told, changes the logits."""
    monkeypatch.setattr(caches, "STRIDE", 1)
    wanted, start = by_steps(session, IDS[:30]), SharedCache.start
    if wrong == 1:
        monkeypatch.setattr(SharedCache, "start", lambda self, row: start(self, row) + (start(self, row) > 0))
    else:
        binding = SharedCache.binding

        def at_first(self: SharedCache, session: onnxruntime.InferenceSession, row: int | None) -> onnxruntime.IOBinding:
            with pytest.MonkeyPatch.context() as patch:
                whole(patch)
                return binding(self, session, row)

        monkeypatch.setattr(SharedCache, "binding", at_first)
    assert parity.difference(by_steps(session, IDS[:30]), wanted) > 1e-3


def test_an_engine_that_does_not_know_the_input_hands_over_everything(session: Session, artifact: Path) -> None:
    graph = onnxruntime.InferenceSession(str(artifact / "model.onnx"), providers=["CPUExecutionProvider"])
    feeds = {i.name: np.zeros((1, i.shape[1], 0, i.shape[3]), np.float32) for i in graph.get_inputs()
             if i.name.startswith("past_key_values.")}
    feeds |= {"input_ids": np.array([IDS]), "attention_mask": np.ones((1, len(IDS)), np.int64)}
    assert "window_start" in {i.name for i in graph.get_overridable_initializers()}
    np.testing.assert_array_equal(graph.run(["logits"], feeds)[0][0], session.logits(IDS))


def test_a_window_as_long_as_the_context_needs_no_input(tmp_path: Path) -> None:
    model = parity.session(write_folder(tmp_path / "model", mistral.SHORT), tmp_path / "out", context=8)
    assert (model.manifest.kv_windows, model._layout.starts) == ((), False)
    model = parity.session(write_folder(tmp_path / "llama", llama.SHORT), tmp_path / "llama-out")
    assert (model.manifest.kv_windows, model._layout.starts) == ((), False)


@pytest.mark.parametrize("said", [[8, 8], [8, -1, 0, 0], ["8", 0, 0, 0], 8, None, [], [0, 0, 0, 0]])
def test_a_manifest_that_says_other_windows_is_refused(said: object, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    compile_model(write_folder(tmp_path / "model", mistral.SHORT), folder, weights="f32")
    raw = json.loads((folder / "uaii.json").read_text())
    assert raw["kv_windows"] == [8, 8, 8, 8]
    (folder / "uaii.json").write_text(json.dumps({**raw, "kv_windows": said}))
    with pytest.raises(Diagnostic) as caught:
        Session.open(folder)
    assert (caught.value.code, "kv_windows" in str(caught.value)) == ("S607" if said in ([], [0] * 4) else "S603", True)


def test_every_chunk_is_bound_where_it_begins(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long prompts go in chunks: each is told how far the text before it has come."""
    monkeypatch.setattr(module, "CHUNK", 64)
    monkeypatch.setattr(module, "SCORES", 64 * 64)
    monkeypatch.setattr(caches, "STRIDE", 1)
    told: list[int] = []
    run = Session._run

    def spy(self: Session, *given: object) -> np.ndarray:
        told.append(int(str(given[-1])))
        return run(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "_run", spy)
    assert parity.difference(session.prefill(IDS, session.cache(), keep_logits=0), session.logits(IDS)) < 1e-5
    assert told[:2] == [0, 64 + 1 - 8]
