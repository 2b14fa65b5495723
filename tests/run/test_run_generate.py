"""Generation: tokens against whole re-runs, reasons to stop, text cut at stop strings, chats, batches, interrupts."""
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tiny_artifact import Tiny, tiny_model, write_artifact

from uaii.backends.ort.generate import generate, generate_batch
from uaii.backends.ort.sampling import Sampling
from uaii.backends.ort.session import Session
from uaii.backends.ort.stopping import StopStrings
from uaii.ir.diag import Diagnostic

IDS = np.random.default_rng(7).integers(0, 40, 60).tolist()


class Pieces:
    """A text stream whose ids stand for given pieces; the last `late` characters come one token later."""

    def __init__(self, pieces: Sequence[str], late: int = 0) -> None:
        self.pieces, self.late, self.held = pieces, late, ""

    def feed(self, id: int) -> str:
        text = self.held + self.pieces[id]
        cut = len(text) - self.late if self.late else len(text)
        self.held = text[max(cut, 0):]
        return text[:max(cut, 0)]

    def finish(self) -> str:
        return self.held


@pytest.fixture(scope="module", params=["in place", "growing"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, Tiny]:
    tiny = tiny_model(learned=request.param == "growing", context=600, seed=4)
    return Session.open(write_artifact(tmp_path_factory.mktemp("artifact"), tiny)), tiny


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Token n is followed by n + 1; 9 by 0; stop id 7."""
    tiny = tiny_model(chain=[1, 2, 3, 4, 5, 6, 7, 8, 9, 0], context=32)
    return Session.open(write_artifact(tmp_path_factory.mktemp("artifact"), tiny, stop_ids=[7]))


def refused(code: str) -> object:
    return pytest.raises(Diagnostic, match=code)


def test_greedy_tokens_equal_whole_runs(pair: tuple[Session, Tiny]) -> None:
    session, tiny = pair
    generation = generate(session, IDS[:45], max_new_tokens=12)
    steps = list(generation)
    result = generation.result
    assert result.tokens == [step.id for step in steps] == tiny.greedy(IDS[:45], 12)
    assert [step.index for step in steps] == list(range(12)) and result.finish_reason == "length"
    stats = result.stats
    assert (stats.prompt_tokens, stats.reused_tokens, stats.generated_tokens) == (45, 0, 12)
    assert stats.decode_tokens_per_second == pytest.approx(11 / stats.decode_seconds)
    assert stats.load_seconds > 0 and (stats.peak_rss_bytes or 0) > 10_000_000
    assert json.loads(json.dumps(result.record()))["stats"]["prefill_seconds"] > 0


def test_a_chat_goes_on_from_its_cache(pair: tuple[Session, Tiny]) -> None:
    session, tiny = pair
    cache = session.cache()
    first = generate(session, IDS[:5], max_new_tokens=4, cache=cache).run().tokens
    history = [*IDS[:5], *first, *IDS[5:8]]
    second = generate(session, history, max_new_tokens=4, cache=cache, logprobs=40).run()
    assert second.stats.reused_tokens == 8
    assert second.tokens == tiny.greedy(history, 4)
    again = generate(session, history, max_new_tokens=4, cache=cache).run()
    assert again.tokens == second.tokens and again.stats.reused_tokens == 11


def test_log_probabilities_are_the_models_own(pair: tuple[Session, Tiny]) -> None:
    session, tiny = pair
    sampling = Sampling(temperature=2.0, seed=3, repetition_penalty=1.2)
    steps = list(generate(session, IDS[:6], max_new_tokens=5, sampling=sampling, logprobs=3))
    ids = IDS[:6]
    for step in steps:
        raw = tiny.logits(ids)[-1]
        logs = raw - raw.max() - np.log(np.exp(raw - raw.max()).sum())
        best = np.argsort(-logs)[:3]
        assert [i for i, _ in step.top] == best.tolist()
        np.testing.assert_allclose([p for _, p in step.top], logs[best], atol=1e-3)
        assert step.logprob == pytest.approx(logs[step.id], abs=1e-3)
        ids = [*ids, step.id]


def test_sampling_is_reproducible_and_batched_rows_draw_as_alone(pair: tuple[Session, Tiny]) -> None:
    session, _ = pair
    prompts, sampling = [IDS[:9], IDS[9:12], IDS[12:40], IDS[:9]], Sampling(temperature=1.5, top_p=0.95, seed=11)
    alone = [generate(session, p, max_new_tokens=10, sampling=sampling).run().tokens for p in prompts]
    assert alone[0] == alone[3] and len({*map(tuple, alone)}) == 3
    together = generate_batch(session, prompts, max_new_tokens=10, sampling=sampling)
    assert [result.tokens for result in together] == alone
    unseeded = generate(session, IDS[:9], max_new_tokens=10, sampling=Sampling(temperature=1.5)).run()
    repeat = Sampling(temperature=1.5, seed=unseeded.seed)
    assert generate(session, IDS[:9], max_new_tokens=10, sampling=repeat).run().tokens == unseeded.tokens


def test_stop_ids(counting: Session) -> None:
    result = generate(counting, [4], max_new_tokens=8).run()
    assert (result.tokens, result.finish_reason) == ([5, 6, 7], "stop")
    result = generate(counting, [4], max_new_tokens=8, ignore_eos=True).run()
    assert (result.tokens, result.finish_reason) == ([5, 6, 7, 8, 9, 0, 1, 2], "length")
    result = generate(counting, [4], max_new_tokens=20, stop_ids=[9, 1]).run()
    assert (result.tokens, result.finish_reason) == ([5, 6, 7, 8, 9], "stop")
    assert generate(counting, [4], max_new_tokens=20, stop_ids=[]).run().finish_reason == "length"
    assert generate(counting, [6], max_new_tokens=1).run().finish_reason == "stop"


def test_stop_id_adds_no_text_and_flushes_it(counting: Session) -> None:
    result = generate(counting, [4], max_new_tokens=8, text=Pieces("0123456789", late=1)).run()
    assert (result.text, result.tokens) == ("56", [5, 6, 7])


@pytest.mark.parametrize(("prompt", "asked", "count", "reason"), [
    (12, 8, 4, "context"), (12, 4, 4, "length"), (15, None, 1, "context"), (16, 5, 0, "context"), (3, 0, 0, "length"),
    (1, None, 15, "context")])
def test_limits(tmp_path: Path, prompt: int, asked: int | None, count: int, reason: str) -> None:
    tiny = tiny_model(context=16)
    session = Session.open(write_artifact(tmp_path, tiny))
    result = generate(session, IDS[:prompt], max_new_tokens=asked).run()
    assert (len(result.tokens), result.finish_reason) == (count, reason)
    assert result.tokens == tiny.greedy(IDS[:prompt], count)


def test_requests_that_are_refused_at_once(counting: Session) -> None:
    with pytest.raises(Diagnostic, match="33 tokens, more than the context of 32") as caught:
        generate(counting, [1] * 33, max_new_tokens=5)
    assert caught.value.code == "S612" and "new tokens asked 5" in str(caught.value)
    for prompt, code in (([], "S613"), ([10], "S611"), ([-1], "S611")):
        with refused(code):
            generate(counting, prompt)
    for options in ({"max_new_tokens": -1}, {"max_new_tokens": 1.5}, {"stop_ids": [10]}, {"stop_ids": [-1]},
                    {"stop_strings": [""]}, {"stop_strings": "abc"}, {"stop_strings": ["a"]}, {"logprobs": 11},
                    {"logprobs": True}):
        with refused("S621"):
            generate(counting, [1], **options)
    with refused("S610"):
        generate(counting, [1], cache=counting.cache(2))
    with refused("S621"):
        generate_batch(counting, [[1], [2]], texts=[Pieces("0123456789")])


@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize(("stops", "text", "tokens", "matched"), [
    (["c-d"], "b", 3, "c-d"), (["d"], "bc-", 3, "d"), (["-", "c-"], "b", 2, "c-"), (["b"], "", 1, "b"),
    (["e!"], "bc-de?fg", 7, None), (["de?f", "e?"], "bc-d", 4, "e?"), (["fg"], "bc-de?", 6, "fg")])
def test_stop_strings_cut_exactly(counting: Session, late: int, stops: list[str], text: str, tokens: int,
                                  matched: str | None) -> None:
    pieces = ["a", "b", "c-", "d", "e?", "f", "g", "", "", ""]
    generation = generate(counting, [0], max_new_tokens=9, stop_strings=stops, text=Pieces(pieces, late))
    shown = "".join(step.text for step in generation)
    result = generation.result
    assert shown == result.text == text and result.stop_string == matched
    assert result.finish_reason == ("stop_string" if matched else "stop")
    if not late:
        assert len(result.tokens) == tokens


def test_stop_strings_do_not_depend_on_the_pieces() -> None:
    text, stops = "aababcababdxx", ["ababd", "cabab", "bd", "zz"]
    rng = np.random.default_rng(0)
    for _ in range(200):
        cuts = sorted(rng.integers(0, len(text) + 1, 4).tolist())
        watch, shown = StopStrings(stops), ""
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            if not watch.matched:
                shown += watch.feed(text[start:end])
        assert (shown, watch.matched) == ("aabab", "cabab")


def test_text_that_could_still_become_a_stop_string_waits() -> None:
    watch = StopStrings(["<end>"])
    assert [watch.feed(piece) for piece in ("a<", "en", "d", "x<e")] == ["a", "", "", "<endx"]
    assert watch.finish("!") == "<e!" and watch.matched is None


def test_ctrl_c_keeps_what_there_is(counting: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    step, calls = counting._step, []

    def interrupted(*rest: object) -> np.ndarray:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return step(*rest)

    monkeypatch.setattr(counting, "_step", interrupted)
    cache = counting.cache()
    text = Pieces("0123456789", late=1)
    generation = generate(counting, [1], max_new_tokens=20, text=text, cache=cache)
    shown = "".join(step.text for step in generation)
    result = generation.result
    assert (result.tokens, result.finish_reason) == ([2, 3, 4], "interrupted")
    assert (shown, result.tail, result.text) == ("23", "4", "234")
    assert list(generation) == []
    assert generate(counting, [1, 2, 3, 4], max_new_tokens=2, cache=cache).run().tokens == [5, 6]
    calls[:] = [1, 1]
    batch = generate_batch(counting, [[0], [3], [5]], max_new_tokens=9)
    assert [(r.tokens, r.finish_reason) for r in batch] == [([1], "interrupted"), ([], "interrupted"),
                                                            ([], "interrupted")]


def test_a_result_read_early_ends_the_generation(counting: Session) -> None:
    generation = generate(counting, [0], max_new_tokens=9)
    next(generation)
    assert (generation.result.tokens, generation.result.finish_reason) == ([1], "interrupted")
    assert list(generation) == []


def test_batch_gives_each_prompt_its_single_run(pair: tuple[Session, Tiny]) -> None:
    session, tiny = pair
    prompts = [IDS[:9], IDS[9:11], IDS[11:55], IDS[:1], [*IDS] * 9]
    steps: dict[int, list[int]] = {i: [] for i in range(5)}
    results = generate_batch(session, prompts, max_new_tokens=8, on_step=lambda row, step: steps[row].append(step.id))
    wanted = [tiny.greedy(prompt, 8) for prompt in prompts]
    assert [result.tokens for result in results] == wanted == list(steps.values())
    assert [result.prompt_tokens for result in results] == prompts
    assert generate_batch(session, []) == []


def test_batch_rows_leave_one_after_another(tmp_path: Path) -> None:
    tiny = tiny_model(context=60, seed=4)
    session = Session.open(write_artifact(tmp_path, tiny))
    prompts = [IDS[:57], IDS[:50], IDS[:55], IDS[3:43]]
    results = generate_batch(session, prompts)
    assert [result.tokens for result in results] == [tiny.greedy(prompt, 60 - len(prompt)) for prompt in prompts]
    assert {result.finish_reason for result in results} == {"context"}


def test_batch_rows_end_on_their_own(counting: Session) -> None:
    pieces = "0123456789"
    results = generate_batch(counting, [[4], [8], [0], [6], [1] * 32], max_new_tokens=5, stop_strings=["12"],
                             texts=[Pieces(pieces) for _ in range(5)])
    assert [(r.tokens, r.finish_reason, r.text) for r in results] == [
        ([5, 6, 7], "stop", "56"), ([9, 0, 1, 2], "stop_string", "90"), ([1, 2], "stop_string", ""),
        ([7], "stop", ""), ([], "context", "")]
