"""One sequence being continued: choosing its tokens, streaming its text, and deciding when it ends and why."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from uaii.backends.ort.sampling import Sampler, Sampling, log_probabilities
from uaii.backends.ort.session import Logits, Session, no_prompt
from uaii.backends.ort.stopping import StopStrings
from uaii.ir.diag import Usage

FinishReason = Literal["stop", "length", "context", "stop_string", "interrupted"]


class TextStream(Protocol):
    """Turns token ids into text piece by piece; the pieces together are the decoded whole."""

    def feed(self, id: int, /) -> str:
        """The text that this token completes; empty while a character is unfinished."""

    def finish(self) -> str:
        """What is still held back, at the end."""


@dataclass(frozen=True)
class Step:
    """One generated token: its place, its id, the text that may be shown now, and log-probabilities if asked for.

    `logprob` and `top` (id, logprob; likeliest first) are the model's own, before penalties and temperature.
    """

    index: int
    id: int
    text: str
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Request:
    """What to generate, checked once: see `generate` for the fields' meaning. Raises Usage S621."""

    max_new_tokens: int | None
    stop_ids: frozenset[int]
    stop_strings: tuple[str, ...]
    logprobs: int

    @classmethod
    def checked(cls, session: Session, max_new_tokens: int | None, stop_ids: Sequence[int] | None, ignore_eos: bool,
                stop_strings: Sequence[str], logprobs: int) -> Request:
        """The request with the artifact's stop ids where none are given, and none with `ignore_eos`."""
        _count("max_new_tokens", max_new_tokens if max_new_tokens is not None else 0, None)
        _count("logprobs", logprobs, session.vocab_size)
        StopStrings(stop_strings)
        ids = session.stop_ids if stop_ids is None else tuple(stop_ids)
        for token in ids:
            _count("a stop id", token, session.vocab_size - 1)
        return cls(max_new_tokens, frozenset(() if ignore_eos else ids), tuple(stop_strings), logprobs)


def _count(name: str, value: Any, most: int | None) -> None:
    if type(value) is not int or value < 0 or (most is not None and value > most):
        limits = "of at least 0" if most is None else f"in 0..{most}"
        raise Usage("S621", f"{name} must be a whole number {limits}, not {value!r}")


class Continuation:
    """The growing output of one prompt. A stop id is kept among the tokens and adds no text.

    `finish_reason` is None while it goes on. Raises Usage S611 (ids), S612 (prompt past the context), S613 (empty),
    S621 (stop strings without a text stream).
    """

    def __init__(self, session: Session, prompt: Sequence[int], request: Request, sampling: Sampling,
                 text: TextStream | None) -> None:
        if not len(prompt):
            raise no_prompt()
        if text is None and request.stop_strings:
            raise Usage("S621", "stop strings need the tokenizer's text", hint="use stop ids with token ids alone")
        self.prompt: list[int] = session.checked(prompt).tolist()
        self.limit = session.context_length
        if len(self.prompt) > self.limit:
            asked = "as many as fit" if request.max_new_tokens is None else str(request.max_new_tokens)
            raise Usage("S612", f"the prompt has {len(self.prompt)} tokens, more than the context of {self.limit}",
                        notes=[f"prompt {len(self.prompt)}, new tokens asked {asked}, context {self.limit}"],
                        why="a prompt is never cut silently", hint="shorten the prompt")
        self.request, self.tokens = request, list[int]()
        self.finish_reason = self._end()
        self.text, self.tail = "", ""
        self.sampler = Sampler(sampling, self.prompt, session.vocab_size)
        self._stream, self._stops = text, StopStrings(request.stop_strings)

    def _end(self) -> FinishReason | None:
        if len(self.tokens) == self.request.max_new_tokens:
            return "length"
        return "context" if len(self.prompt) + len(self.tokens) >= self.limit else None

    def take(self, logits: Logits) -> Step:
        """Choose the next token from logits [V] and decide whether it is the last."""
        token = self.sampler.choose(logits)
        self.tokens.append(token)
        shown = ""
        if token in self.request.stop_ids:
            self.finish_reason = "stop"
        else:
            shown = self._stops.feed(self._stream.feed(token)) if self._stream else ""
            self.finish_reason = "stop_string" if self._stops.matched else self._end()
        shown += self._rest() if self.finish_reason else ""
        self.text += shown
        return self._step(token, shown, logits)

    def interrupt(self) -> None:
        """End here, keeping what there is; text that was held back goes to `tail` and `text`."""
        self.finish_reason = "interrupted"
        self.tail = self._rest()
        self.text += self.tail

    def _rest(self) -> str:
        if self._stream is None or self.stop_string:
            return ""
        rest = self._stops.finish(self._stream.finish())
        if self._stops.matched and self.finish_reason != "interrupted":
            self.finish_reason = "stop_string"
        return rest

    def _step(self, token: int, shown: str, logits: Logits) -> Step:
        index, count = len(self.tokens) - 1, self.request.logprobs
        if not count:
            return Step(index, token, shown)
        logs = log_probabilities(logits)
        best = (-logs).argsort(kind="stable")[:count]
        return Step(index, token, shown, float(logs[token]), tuple((int(i), float(logs[i])) for i in best))

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stops.matched
