"""The session against the same model in NumPy: prefill, steps, chunks, rewinding, growth, batches, refusals."""
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tiny_artifact import Tiny, tiny_model, write_artifact

from uaii.backends.ort import session as module
from uaii.backends.ort.cache import SharedCache
from uaii.backends.ort.session import Session
from uaii.ir.diag import Diagnostic

IDS = np.random.default_rng(7).integers(0, 40, 60).tolist()


@pytest.fixture(scope="module", params=["in place", "growing"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, Tiny]:
    tiny = tiny_model(learned=request.param == "growing", context=2048)
    return Session.open(write_artifact(tmp_path_factory.mktemp("artifact"), tiny)), tiny


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, Tiny]:
    tiny = tiny_model(context=2048)
    return Session.open(write_artifact(tmp_path_factory.mktemp("artifact"), tiny)), tiny


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, atol=1e-4 * float(np.ptp(wanted)))


def refused(code: str) -> object:
    return pytest.raises(Diagnostic, match=code)


def test_prefill_and_steps_equal_the_reference(pair: tuple[Session, Tiny]) -> None:
    session, tiny = pair
    wanted = tiny.logits(IDS)
    close(session.logits(IDS), wanted)
    cache = session.cache()
    stepped = [session.step(np.array([[token]]), None, cache)[0, 0] for token in IDS]
    close(np.array(stepped), wanted)
    assert cache.ids == [IDS]


@pytest.mark.parametrize("keep", [1, 3, 0, 99])
def test_keep_logits_returns_the_last(pair: tuple[Session, Tiny], keep: int) -> None:
    session, tiny = pair
    got = session.step(np.array([IDS[:9]]), None, session.cache(), keep)
    close(got[0], tiny.logits(IDS[:9])[-keep if keep < 9 else 0:])


def test_graph_without_the_optional_input(tmp_path: Path) -> None:
    tiny = tiny_model()
    session = Session.open(write_artifact(tmp_path, tiny, keeps=False))
    got = session.step(np.array([IDS[:9]]), None, session.cache(), 2)
    assert got.shape == (1, 2, 40)
    close(got[0], tiny.logits(IDS[:9])[-2:])


def test_chunks_give_the_same_logits(pair: tuple[Session, Tiny]) -> None:
    session, tiny = pair
    long = np.random.default_rng(1).integers(0, 40, 1300).tolist()
    wanted = tiny.logits(long)
    close(session.logits(long), wanted)
    cache = session.cache()
    close(session.prefill(long[:700], cache), wanted[699:700])
    close(session.prefill(long[700:], cache), wanted[-1:])
    assert cache.lengths == [1300]


def test_chunk_sizes(shared: tuple[Session, Tiny], monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = shared
    sizes: list[int] = []
    step = session._step

    def spy(ids: np.ndarray, *rest: object) -> np.ndarray:
        sizes.append(ids.shape[1])
        return step(ids, *rest)

    monkeypatch.setattr(session, "_step", spy)
    session.logits([1] * 1100)
    assert sizes == [512, 512, 76]
    sizes.clear()
    monkeypatch.setattr(module, "SCORES", 512 * 512)
    session.logits([1] * 1100)
    assert sizes[:2] == [512, 256] and sum(sizes) == 1100


def test_rewind_forgets(pair: tuple[Session, Tiny]) -> None:
    session, tiny = pair
    cache = session.cache()
    session.prefill(IDS[:30], cache)
    cache.rewind(10)
    close(session.prefill(IDS[40:], cache), tiny.logits(IDS[:10] + IDS[40:])[-1:])
    cache.rewind(0)
    close(session.prefill(IDS[5:8], cache), tiny.logits(IDS[5:8])[-1:])
    with refused("S610"):
        cache.rewind(4)


def test_reuse_keeps_the_shared_prefix_short_of_the_last_token(pair: tuple[Session, Tiny]) -> None:
    session, tiny = pair
    cache = session.cache()
    session.prefill(IDS[:20], cache)
    assert cache.reuse(IDS[:20]) == 19
    close(session.prefill(IDS[19:25], cache), tiny.logits(IDS[:25])[-1:])
    assert cache.reuse(IDS[:12] + [(IDS[12] + 1) % 40, 5]) == 12
    assert cache.reuse([(IDS[0] + 1) % 40]) == 0 and cache.ids == [[]]


def test_cache_grows_with_the_length(shared: tuple[Session, Tiny]) -> None:
    session, tiny = shared
    cache = session.cache(capacity=8)
    per_token = 2 * 2 * 2 * 16 * 4
    assert (cache.capacity, cache.nbytes) == (8, 8 * per_token)
    sizes = []
    for token in IDS:
        logits = session.step(np.array([[token]]), None, cache)
        sizes.append(cache.capacity)
    close(logits[0], tiny.logits(IDS)[-1:])
    assert sorted(set(sizes)) == [8, 16, 32, 64]
    assert session.cache().capacity == 256 and session.cache().nbytes == 256 * per_token


def test_growth_stops_at_the_context(tmp_path: Path) -> None:
    tiny = tiny_model(context=12)
    session = Session.open(write_artifact(tmp_path, tiny))
    cache = session.cache(capacity=8)
    session.prefill(IDS[:11], cache)
    close(session.step(np.array([IDS[11:12]]), None, cache)[0], tiny.logits(IDS[:12])[-1:])
    assert cache.capacity == 12
    with refused("S612"):
        session.step(np.array([[1]]), None, cache)
    with refused("S612"):
        session.prefill(IDS[:13], session.cache())
    assert cache.lengths == [12]


def test_a_prompt_that_does_not_fit_runs_no_chunk(pair: tuple[Session, Tiny]) -> None:
    cache = pair[0].cache()
    with refused("S612"):
        pair[0].prefill([1] * 2049, cache)
    assert cache.lengths == [0]


def test_context_can_be_shortened_only(tmp_path: Path) -> None:
    folder = write_artifact(tmp_path, tiny_model())
    assert Session.open(folder, context=20).context_length == 20
    for context in (0, 65, -1, True, "9"):
        with refused("S610"):
            Session.open(folder, context=context)


def test_right_padded_rows_and_uneven_steps_equal_single_runs(shared: tuple[Session, Tiny]) -> None:
    session, tiny = shared
    rows, cache = [IDS[:9], IDS[20:24], IDS[30:37]], session.cache(3)
    ids, mask = np.zeros((3, 9), np.int64), np.zeros((3, 9), np.int64)
    for at, row in enumerate(rows):
        ids[at, :len(row)], mask[at, :len(row)] = row, 1
    logits = session.step(ids, mask, cache, 0)
    for got, row in zip(logits, rows, strict=True):
        close(got[:len(row)], tiny.logits(row))
    for _ in range(3):
        rows = [[*row, IDS[len(row) + 5]] for row in rows]
        logits = session.step(np.array([row[-1:] for row in rows]), None, cache)
        for got, row in zip(logits, rows, strict=True):
            close(got, tiny.logits(row)[-1:])
    assert cache.ids == rows
    assert isinstance(cache, SharedCache)
    cache.keep([2, 0])
    logits = session.step(np.array([[1], [2]]), None, cache)
    close(logits[0], tiny.logits([*rows[2], 1])[-1:])
    close(logits[1], tiny.logits([*rows[0], 2])[-1:])


def test_rows_prefill_alone_and_grow_together(shared: tuple[Session, Tiny]) -> None:
    session, tiny = shared
    cache = session.cache(2, capacity=4)
    close(session.prefill(IDS[:3], cache, row=1), tiny.logits(IDS[:3])[-1:])
    close(session.prefill(IDS[10:40], cache, row=0), tiny.logits(IDS[10:40])[-1:])
    logits = session.step(np.array([[7], [8]]), None, cache)
    close(logits[0], tiny.logits([*IDS[10:40], 7])[-1:])
    close(logits[1], tiny.logits([*IDS[:3], 8])[-1:])


def test_the_kernel_is_silently_wrong_on_left_padding_so_it_is_refused(shared: tuple[Session, Tiny]) -> None:
    session, tiny = shared
    feeds = {name: np.zeros((2, 2, 0, 16), np.float32) for name in
             (f"past_key_values.{i}.{part}" for i in range(2) for part in ("key", "value"))}
    ids, mask = np.array([IDS[:6], [0, 0, 0, *IDS[:3]]]), np.array([[1] * 6, [0, 0, 0, 1, 1, 1]])
    raw = session._session.run(["logits"], feeds | {"input_ids": ids, "attention_mask": mask})[0]
    close(raw[0], tiny.logits(IDS[:6]))
    assert np.abs(raw[1, 3:] - tiny.logits(IDS[:3])).max() > 0.1
    with refused("S614"):
        session.step(ids, mask, session.cache(2))


@pytest.mark.parametrize("mask", [[[1, 1, 1], [1, 0, 1]], [[1, 1, 0], [1, 0, 0]], [[1, 1, 1]], [1, 1, 1],
                                  [[1, 1, 1], [0, 0, 0]], [[2, 0, 0], [1, 1, 1]]])
def test_masks_that_are_no_right_padding(shared: tuple[Session, Tiny], mask: object) -> None:
    session, _ = shared
    with refused("S614"):
        session.step(np.array([[1, 2, 3], [4, 5, 6]]), np.array(mask), session.cache(2))


def test_chunk_after_a_past_goes_row_by_row(shared: tuple[Session, Tiny]) -> None:
    session, _ = shared
    cache = session.cache(2)
    session.prefill([1, 2], cache, row=0)
    with refused("S614"):
        session.step(np.array([[1, 2], [3, 4]]), None, cache)


@pytest.mark.parametrize(("ids", "says"), [
    ([1, 40], "token id 40 at position 1"), ([-1], "token id -1 at position 0"), ([1.5], "whole numbers"),
    ([True], "whole numbers"), (["a"], "whole numbers"), ([[1], [2, 3]], "one length"), ([2**63], "token id"),
    ([2**70], "whole numbers")])
def test_bad_ids_are_named_before_running(pair: tuple[Session, Tiny], ids: list[object], says: str) -> None:
    session, _ = pair
    with pytest.raises(Diagnostic, match=says) as caught:
        session.logits(ids)
    assert (caught.value.code, caught.value.exit_code) == ("S611", 2)


def test_empty_prompt(pair: tuple[Session, Tiny]) -> None:
    with refused("S613"):
        pair[0].logits([])


def test_nan_logits_are_refused(tmp_path: Path) -> None:
    session = Session.open(write_artifact(tmp_path, tiny_model(chain=[1, 2, -1, 0])))
    assert session.logits([0, 1]).argmax(-1).tolist() == [1, 2]
    with pytest.raises(Diagnostic, match="NaN or infinity") as caught:
        session.logits([0, 1, 2])
    assert (caught.value.code, caught.value.exit_code) == ("S615", 4)


def test_a_failing_step_is_a_diagnostic_and_leaves_the_cache(shared: tuple[Session, Tiny], capfd: object) -> None:
    session, tiny = shared
    cache = session.cache()
    session.prefill(IDS[:4], cache)
    binding = cache.binding(session._session, None)
    binding.bind_cpu_input("past_key_values.0.key", np.zeros((1, 2, 2, 16), np.float32))
    with pytest.raises(Diagnostic) as caught:
        session.step(np.array([[1]]), None, cache)
    assert caught.value.code == "S616" and caught.value.exit_code == 1 and caught.value.notes
    assert cache.ids == [IDS[:4]]
    assert capfd.readouterr() == ("", "")


def test_caches_of_one_session_run_at_once(pair: tuple[Session, Tiny]) -> None:
    session, tiny = pair
    prompts = [IDS[n:n + 5 + n % 7] for n in range(48)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(session.logits, prompts))
    for got, prompt in zip(answers, prompts, strict=True):
        close(got, tiny.logits(prompt))
