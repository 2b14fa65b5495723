"""Generation: a prompt's ids in, tokens and text out one by one, with the reason why it ended and what it took."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from uaii.backends.ort.cache import Cache, SharedCache
from uaii.backends.ort.continuation import Continuation, FinishReason, Request, Step, TextStream
from uaii.backends.ort.sampling import Sampling
from uaii.backends.ort.session import Logits, Session
from uaii.ir.diag import Usage
from uaii.ir.memory import peak_bytes


@dataclass(frozen=True)
class Stats:
    """What a generation took: tokens, seconds, tokens per second (None when nothing was timed), bytes.

    `reused_tokens` of the prompt were in the cache already. Decode counts the steps after the prompt's own. In a
    batch the times are those of the whole call, and the rate is per row.
    """

    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    load_seconds: float
    prefill_seconds: float
    decode_seconds: float
    prefill_tokens_per_second: float | None
    decode_tokens_per_second: float | None
    peak_rss_bytes: int | None


@dataclass(frozen=True)
class Result:
    """A finished (or interrupted) generation.

    `tokens` ends with the stop id if one ended it; `text` is cut before a stop string, though `tokens` holds the
    token that completed it. `tail` is the end of `text` that no step has shown (after an interrupt). `seed` is the
    one in use.
    """

    prompt_tokens: list[int]
    tokens: list[int]
    text: str
    finish_reason: FinishReason
    stop_string: str | None
    tail: str
    seed: int
    stats: Stats

    def record(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


class Generation(Iterator[Step]):
    """An iterator of steps, and their `result`; reading the result early ends the generation as "interrupted".

    Ctrl-C inside a step ends the iteration and keeps what was generated.
    """

    def __init__(self, session: Session, sequence: Continuation, cache: Cache) -> None:
        self._session, self._sequence, self._cache = session, sequence, cache
        self._prefill, self._decode, self._reused, self._begun = 0.0, 0.0, 0, False
        self._result: Result | None = None

    def __next__(self) -> Step:
        try:
            return self._advance()
        except KeyboardInterrupt:
            self._sequence.interrupt()
            raise StopIteration from None

    def _advance(self) -> Step:
        sequence = self._sequence
        if sequence.finish_reason and self._begun:
            raise StopIteration
        start = time.perf_counter()
        if not self._begun:
            self._begun = True
            self._reused = 0 if self._session.manifest.whole_prompt else self._cache.reuse(sequence.prompt)
            if not self._session.continues(self._cache, len(sequence.prompt)):
                self._reused = 0
            self._cache.rewind(self._reused)
            logits = self._session.prefill(sequence.prompt[self._reused:], self._cache)
            self._prefill = time.perf_counter() - start
            if sequence.finish_reason:
                raise StopIteration
            return sequence.take(logits[-1])
        logits = self._session.step(np.array([sequence.tokens[-1:]], np.int64), None, self._cache)[0]
        step = sequence.take(logits[-1])
        self._decode += time.perf_counter() - start
        return step

    @property
    def result(self) -> Result:
        """Tokens, text, finish reason and stats; final."""
        if self._result is None:
            if self._sequence.finish_reason is None:
                self._sequence.interrupt()
            self._result = _result(self._session, self._sequence, self._reused, self._prefill, self._decode)
        return self._result

    def run(self) -> Result:
        """Iterate to the end and return the result."""
        for _ in self:
            pass
        return self.result


def generate(session: Session, prompt_ids: Sequence[int], *, max_new_tokens: int | None = None,
             sampling: Sampling | None = None, stop_ids: Sequence[int] | None = None, ignore_eos: bool = False,
             stop_strings: Sequence[str] = (), text: TextStream | None = None, logprobs: int = 0,
             cache: Cache | None = None) -> Generation:
    """Continue a prompt; iterate the answer for steps as they come, or call `run()`.

    max_new_tokens: None runs to the context's end. sampling: None is greedy. stop_ids: None takes the artifact's; with
    `ignore_eos` none stops. text: decodes for `Step.text` and stop strings. logprobs: how many likeliest tokens each
    step reports. cache: a cache of this session to continue from; what it shares with the prompt is not run again, so
    a chat passes its whole history each time. Prompt and output together never exceed `session.context_length`: it
    ends with "context" there. Ends with "stop" (an id), "length", "context", "stop_string" or "interrupted".
    Raises Usage S611-S613, S620, S621 at once; errors of `Session.step` while running.
    """
    request = Request.checked(session, max_new_tokens, stop_ids, ignore_eos, stop_strings, logprobs)
    if cache is not None and cache.batch != 1:
        raise Usage("S610", f"one prompt continues a cache of one row, not of {cache.batch}")
    sequence = Continuation(session, prompt_ids, request, sampling or Sampling(), text)
    return Generation(session, sequence, cache or session.cache())


def generate_batch(session: Session, prompts: Sequence[Sequence[int]], *, max_new_tokens: int | None = None,
                   sampling: Sampling | None = None, stop_ids: Sequence[int] | None = None, ignore_eos: bool = False,
                   stop_strings: Sequence[str] = (), texts: Sequence[TextStream] | None = None, logprobs: int = 0,
                   on_step: Callable[[int, Step], None] | None = None) -> list[Result]:
    """Continue several prompts of any lengths together; results in their order, parameters as `generate`.

    Every prompt gets its single run: prefill goes row by row (the kernel takes no padded chunk after a past), then
    all rows decode in one step each, at their own lengths; a finished row leaves the batch. Products of one and of
    several rows agree to rounding with f32 weights; kernels over packed weights round their input to 8 bits, one row in
    another way than several (measured: logits up to 2 % of their range apart), so near-ties can fall otherwise. Each row draws
    from its own generator with the same seed. Where the graph's cache grows by concatenation, or logits depend on the
    length of the call, rows run one by one.
    """
    if texts is not None and len(texts) != len(prompts):
        raise Usage("S621", f"{len(texts)} text streams for {len(prompts)} prompts")
    request = Request.checked(session, max_new_tokens, stop_ids, ignore_eos, stop_strings, logprobs)
    return continue_rows(session, [Continuation(session, prompt, request, sampling or Sampling(), texts[i] if texts else None)
                                   for i, prompt in enumerate(prompts)], on_step)


def continue_rows(session: Session, rows: list[Continuation],
                  on_step: Callable[[int, Step], None] | None = None) -> list[Result]:
    """Continue sequences together to their ends, each with its own request and sampling; see `generate_batch`."""
    if not rows:
        return []
    report = on_step or (lambda row, step: None)
    together = session.manifest.kv_in_place and not session.manifest.whole_prompt
    cache = session.cache(len(rows)) if together else None
    if isinstance(cache, SharedCache):
        return _together(session, rows, cache, report)
    made: list[Result] = []
    for i, row in enumerate(rows):
        generation = Generation(session, row, session.cache())
        if not made or made[-1].finish_reason != "interrupted":  # Ctrl-C is meant for all of them
            for step in generation:
                report(i, step)
        made.append(generation.result)
    return made


def _together(session: Session, rows: list[Continuation], cache: SharedCache,
              report: Callable[[int, Step], None]) -> list[Result]:
    start, prefilled = time.perf_counter(), 0.0
    try:
        for i, row in enumerate(rows):
            first = session.prefill(row.prompt, cache, row=i)
            if row.finish_reason is None:
                report(i, row.take(first[-1]))
        prefilled = time.perf_counter() - start
        _decode(session, rows, cache, report)
    except KeyboardInterrupt:
        for row in (row for row in rows if row.finish_reason is None):
            row.interrupt()
    spent = time.perf_counter() - start
    return [_result(session, row, 0, prefilled, spent - prefilled) for row in rows]


def _decode(session: Session, rows: list[Continuation], cache: SharedCache,
            report: Callable[[int, Step], None]) -> None:
    live = list(range(len(rows)))
    while True:
        going = [i for i in live if rows[i].finish_reason is None]
        if not going:
            return
        if going != live:
            cache.keep([live.index(i) for i in going])
            live = going
        logits: Logits = session.step(np.array([rows[i].tokens[-1:] for i in live], np.int64), None, cache)
        for i, line in zip(live, logits, strict=True):
            report(i, rows[i].take(line[-1]))


def _result(session: Session, sequence: Continuation, reused: int, prefill: float, decode: float) -> Result:
    count = len(sequence.tokens)
    fresh = len(sequence.prompt) - reused
    stats = Stats(len(sequence.prompt), reused, count, session.load_seconds, prefill, decode,
                  fresh / prefill if prefill else None, (count - 1) / decode if decode and count > 1 else None,
                  peak_bytes())
    return Result(sequence.prompt, list(sequence.tokens), sequence.text, sequence.finish_reason or "interrupted",
                  sequence.stop_string, sequence.tail, sequence.sampler.seed, stats)
