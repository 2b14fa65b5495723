"""Each sampling transform against a plain list-by-list reading of its definition."""
import math

import numpy as np
import pytest

from uaii.backends.ort import sampling as module
from uaii.backends.ort.sampling import Sampler, Sampling, candidates, log_probabilities, penalise
from uaii.ir.diag import Usage

RNG = np.random.default_rng(3)


def softmax(values: list[float]) -> list[float]:
    top = max(values)
    powers = [math.exp(v - top) for v in values]
    return [p / sum(powers) for p in powers]


def plain(logits: list[float], s: Sampling) -> dict[int, float]:
    """Temperature, top-k, top-p, min-p as transformers' warpers define them, one after the other."""
    alive = {i: v / s.temperature for i, v in enumerate(logits)}
    if s.top_k:
        limit = sorted(alive.values(), reverse=True)[min(s.top_k, len(alive)) - 1]
        alive = {i: v for i, v in alive.items() if v >= limit}
    if s.top_p < 1:
        shares = dict(zip(alive, softmax(list(alive.values())), strict=True))
        reached, kept = 0.0, []
        for i in sorted(alive, key=lambda i: (-alive[i], i)):
            if kept and reached >= s.top_p:
                break
            kept.append(i)
            reached += shares[i]
        alive = {i: alive[i] for i in sorted(kept)}
    shares = dict(zip(alive, softmax(list(alive.values())), strict=True))
    alive = {i: v for i, v in alive.items() if shares[i] >= s.min_p * max(shares.values())}
    return dict(zip(alive, softmax(list(alive.values())), strict=True))


@pytest.mark.parametrize("options", [
    {}, {"temperature": 0.3}, {"temperature": 4.0}, {"top_k": 1}, {"top_k": 7}, {"top_k": 1000}, {"top_p": 0.5},
    {"top_p": 1e-9}, {"top_p": 0.999}, {"min_p": 0.2}, {"min_p": 1.0}, {"top_k": 5, "top_p": 0.6},
    {"temperature": 0.5, "top_p": 0.8, "min_p": 0.1}, {"temperature": 2.0, "top_k": 9, "top_p": 0.7, "min_p": 0.3}])
@pytest.mark.parametrize("head", [1024, 8])
def test_candidates(options: dict[str, float], head: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD", head)
    sampling = Sampling(**{"temperature": 1.0} | options)
    for _ in range(10):
        logits = RNG.standard_normal(50) * 3
        logits[RNG.integers(50, size=4)] = logits.max()
        ids, shares = candidates(logits, sampling)
        wanted = plain(logits.tolist(), sampling)
        assert ids.tolist() == list(wanted)
        np.testing.assert_allclose(shares, list(wanted.values()), rtol=1e-9)


def test_extreme_temperatures_stay_finite() -> None:
    logits = np.array([1e4, -1e4, 9999.0])
    ids, shares = candidates(logits, Sampling(temperature=1e-300))
    assert shares.tolist() == [1.0, 0.0, 0.0] and ids.tolist() == [0, 1, 2]
    np.testing.assert_allclose(candidates(logits, Sampling(temperature=1e300))[1], [1 / 3] * 3)


def test_penalties() -> None:
    logits = RNG.standard_normal(12)
    prompt, output = [1, 1, 2, 5], [2, 7, 7, 7]
    wanted = logits.tolist()
    for token in {*prompt, *output}:
        wanted[token] = wanted[token] * 1.3 if wanted[token] < 0 else wanted[token] / 1.3
    for token in set(output):
        wanted[token] -= 0.5 + 0.25 * output.count(token)
    seen = np.bincount(prompt + output, minlength=12)
    sampling = Sampling(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25)
    before = logits.copy()
    got = penalise(logits, seen, np.bincount(output, minlength=12), sampling)
    np.testing.assert_allclose(got, wanted, rtol=1e-12)
    np.testing.assert_array_equal(logits, before)
    assert (logits[[1, 2, 5, 7]] > 0).any() and (logits[[1, 2, 5, 7]] < 0).any()


def test_penalties_act_on_greedy_choice_and_count_its_output() -> None:
    logits = np.array([1.0, 0.9, 0.5], np.float32)
    frequent = Sampler(Sampling(frequency_penalty=0.3), [0, 0, 0], 3)
    assert [frequent.choose(logits) for _ in range(4)] == [0, 1, 0, 1]
    present = Sampler(Sampling(presence_penalty=0.2), [0, 0, 0], 3)
    assert [present.choose(logits) for _ in range(3)] == [0, 1, 0]
    assert Sampler(Sampling(repetition_penalty=1.5), [0], 3).choose(logits) == 1


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = np.array([0.0, 2.0, 2.0], np.float32)
    assert Sampler(Sampling(), [0], 3).choose(logits) == 1
    assert Sampler(Sampling(frequency_penalty=0.1), [0], 3).choose(logits) == 1


def test_same_seed_same_tokens_and_the_drawn_seed_is_told() -> None:
    logits = RNG.standard_normal((200, 30)).astype(np.float32)

    def tokens(seed: int | None) -> tuple[int, list[int]]:
        sampler = Sampler(Sampling(temperature=1.5, seed=seed), [0], 30)
        return sampler.seed, [sampler.choose(row) for row in logits]

    assert tokens(5) == tokens(5)
    assert tokens(5)[1] != tokens(6)[1]
    seed, first = tokens(None)
    assert tokens(seed)[1] == first
    assert tokens(None)[1] != first


def test_draws_follow_the_probabilities() -> None:
    logits = np.log(np.array([0.1, 0.6, 0.3], np.float32))
    sampler = Sampler(Sampling(temperature=1.0, seed=1), [0], 3)
    counts = np.bincount([sampler.choose(logits) for _ in range(4000)], minlength=3) / 4000
    np.testing.assert_allclose(counts, [0.1, 0.6, 0.3], atol=0.03)


def test_log_probabilities() -> None:
    logits = np.array([300.0, 299.0, -300.0], np.float32)
    np.testing.assert_allclose(log_probabilities(logits), [-0.3132617, -1.3132617, -600.3132617], rtol=1e-6)


@pytest.mark.parametrize(("name", "value"), [
    ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("temperature", "1"),
    ("temperature", True), ("top_k", -1), ("top_k", 1.0), ("top_p", 0.0), ("top_p", 1.1), ("min_p", -0.1),
    ("min_p", 1.5), ("repetition_penalty", 0.0), ("presence_penalty", 2.5), ("frequency_penalty", -2.5),
    ("seed", -1), ("seed", 0.5)])
def test_parameters_out_of_range(name: str, value: object) -> None:
    with pytest.raises(Usage, match=name) as caught:
        Sampling(**{name: value})
    assert (caught.value.code, caught.value.exit_code) == ("S620", 2)
