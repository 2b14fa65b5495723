"""A cache of latent rows: kept once for each token, and every way of feeding tokens gives the logits of the whole text."""
from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import parity
import pytest
from family_cases import deepseek_v2, deepseek_v3, llama
from tiny_models import write_folder

from uaii import measure
from uaii.backends.onnx.rules.latent import Sizes
from uaii.backends.ort import session as module
from uaii.backends.ort.generate import generate_batch
from uaii.backends.ort.session import Session
from uaii.compiler import through_passes
from uaii.inspection import inspect
from uaii.ir.diag import Diagnostic

CASES = {"ranked": deepseek_v3.PLAIN, "lite": deepseek_v2.PLAIN.set("lite", q_lora_rank=None)}
IDS = deepseek_v3.PLAIN.prompts()[-1]
PER_TOKEN = 4 * (32 + 16) * 4  # layers, latent and rotated features, f32


@pytest.fixture(scope="module", params=CASES)
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("latent")
    parity.session(write_folder(folder / "model", CASES[request.param]), folder / "out")
    return folder / "out"


@pytest.fixture()
def session(artifact: Path) -> Session:
    return Session.open(artifact, threads=1)


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.shape == wanted.shape
    assert float(np.abs(got - wanted).max() / np.ptp(wanted)) < 1e-5


def manifest(artifact: Path, to: Path, **changes: object) -> Path:
    """A copy of the artifact whose manifest says other things."""
    shutil.copytree(artifact, to)
    said = json.loads((to / "uaii.json").read_text())
    (to / "uaii.json").write_text(json.dumps(said | changes))
    return to


def test_each_token_is_kept_once(session: Session, artifact: Path) -> None:
    cache = session.cache(batch=3, capacity=20)
    assert (cache.nbytes, len(cache.slots)) == (3 * 20 * PER_TOKEN, 4)
    cache.reserve(21)
    assert cache.nbytes == 3 * 40 * PER_TOKEN
    said = json.loads((artifact / "uaii.json").read_text())
    assert (said["kv_latent"], said["kv_in_place"]) == (True, True)


def test_what_is_said_of_a_token_is_what_is_kept(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, deepseek_v3.PLAIN)
    assert inspect(folder).facts["kv_bytes_per_token"] == PER_TOKEN
    done = through_passes(folder)
    assert measure.cache_per_token(done.lowered.graph) == measure.cache_per_token(done.graph) == PER_TOKEN


def test_other_engines_find_a_key_and_a_value(session: Session, artifact: Path) -> None:
    genai = json.loads((artifact / "genai_config.json").read_text())["model"]["decoder"]
    inputs = {node.name: node.shape for node in session._session.get_inputs()}
    for part in ("key", "value"):
        for i in range(4):
            assert inputs[genai["inputs"][f"past_{part}_names"] % i][1::2] == [genai["num_key_value_heads"], genai["head_size"]]
    assert (genai["num_key_value_heads"], genai["head_size"], genai["num_attention_heads"]) == (1, 48, 4)


def test_two_buffers_give_the_same(artifact: Path, session: Session, tmp_path: Path) -> None:
    """The control: the rows are the same where key and value are kept apart, at twice the size."""
    apart = Session.open(manifest(artifact, tmp_path / "apart", kv_latent=False), threads=1)
    cache = apart.cache(capacity=len(IDS))
    close(apart.prefill(IDS, cache, keep_logits=0), session.logits(IDS))
    assert cache.nbytes == len(IDS) * 2 * PER_TOKEN
    for key, value in zip(cache.buffers[::2], cache.buffers[1::2], strict=True):
        np.testing.assert_array_equal(key.numpy(), value.numpy())
        assert key.numpy().any()


def test_steps_and_chunks_are_the_whole(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 7 < Sizes(4, 12, 32, 16, 20).crossing < 64, "one form only"
    wanted = session.logits(IDS)
    cache = session.cache(capacity=1)
    close(np.array([session.step(np.array([[t]]), None, cache)[0, 0] for t in IDS]), wanted)
    for size in (7, 64):
        monkeypatch.setattr(module, "CHUNK", size)
        monkeypatch.setattr(module, "SCORES", size * size)
        close(session.prefill(IDS, session.cache(capacity=1), keep_logits=0), wanted)


def test_what_is_rewound_is_forgotten(session: Session) -> None:
    cache = session.cache()
    session.prefill(IDS, cache)
    cache.rewind(30)
    close(session.prefill(IDS[60:], cache, keep_logits=0), session.logits(IDS[:30] + IDS[60:])[30:])


def test_a_shared_prefix_is_not_run_again(session: Session) -> None:
    cache = session.cache()
    session.prefill(IDS[:50], cache)
    other = [*IDS[:40], *reversed(IDS[:20])]
    assert cache.reuse(other) == 40
    close(session.prefill(other[40:], cache, keep_logits=0), session.logits(other)[40:])


def test_rows_of_a_batch_do_not_see_each_other(session: Session) -> None:
    prompts = [IDS[:n] for n in (1, 33, 80, 12)]
    alone = [generate_batch(session, [p], max_new_tokens=20, ignore_eos=True)[0].tokens for p in prompts]
    assert [r.tokens for r in generate_batch(session, prompts, max_new_tokens=20, ignore_eos=True)] == alone


def test_kept_rows_keep_their_tokens(session: Session) -> None:
    cache = session.cache(batch=3, capacity=4)
    for row, count in enumerate((5, 9, 30)):
        session.prefill(IDS[:count], cache, row=row)
    cache.keep([2, 0])
    got = session.step(np.array([[IDS[30]], [IDS[5]]]), None, cache)
    for row, count in enumerate((30, 5)):
        close(got[row], session.logits(IDS[:count + 1])[-1:])


@pytest.mark.parametrize("changes", [{"kv_latent": 1}, {"kv_latent": "yes"}, {"kv_in_place": False}])
def test_a_manifest_that_cannot_be_meant_is_refused(changes: dict[str, object], artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(Diagnostic) as caught:
        Session.open(manifest(artifact, tmp_path / "wrong", **changes))
    assert caught.value.code in ("S603", "S607")


def test_keys_and_values_that_differ_are_kept_apart(tmp_path: Path) -> None:
    model = parity.session(write_folder(tmp_path / "model", llama.SHORT), tmp_path / "out")
    assert not model.manifest.kv_latent
    assert model.cache(capacity=8).nbytes == 8 * 4 * 2 * 2 * 16 * 4  # tokens, layers, key and value, heads, features, f32
