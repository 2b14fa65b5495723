"""An artifact ready to generate: session, tokenizer and chat template in one object."""
from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from uaii.backends.ort import generate as runs
from uaii.backends.ort.cache import Cache
from uaii.backends.ort.padding import batch_logits
from uaii.backends.ort.sampling import Sampling
from uaii.backends.ort.session import Session
from uaii.frontend.chat_ids import Conversations
from uaii.frontend.tokenizer.text import TextStream, Tokenizer
from uaii.ir.diag import Unsupported
from uaii.ir.loc import File

Messages = Sequence[dict[str, Any]]


class Model:
    """What `uaii.load` returns. Token ids in and out are lists of ints; logits are float32 [positions, vocab]."""

    def __init__(self, session: Session) -> None:
        self.session, self.folder = session, session.folder
        has = (self.folder / "tokenizer.json").is_file()
        self._tokenizer = Tokenizer.from_artifact(self.folder) if has else None
        self._conversations: Conversations | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises Unsupported K520 when the artifact ships none."""
        if self._tokenizer is None:
            raise no_tokenizer(self.folder)
        return self._tokenizer

    def stream(self) -> TextStream | None:
        """A fresh incremental decoder, or None without a tokenizer."""
        return self._tokenizer.stream() if self._tokenizer is not None else None

    def start(self, ids: Sequence[int], *, max_new_tokens: int | None = None, ignore_eos: bool = False,
              sampling: Sampling | None = None, stop_strings: Sequence[str] = (), cache: Cache | None = None,
              logprobs: int = 0) -> runs.Generation:
        """A generation to iterate over; see backends.ort.generate."""
        return runs.generate(self.session, ids, max_new_tokens=max_new_tokens, ignore_eos=ignore_eos, sampling=sampling,
                             stop_strings=stop_strings, text=self.stream(), cache=cache, logprobs=logprobs)

    def generate(self, ids: Sequence[int], *, max_new_tokens: int | None = None, ignore_eos: bool = False,
                 sampling: Sampling | None = None) -> list[int]:
        """New token ids after the prompt `ids`; greedy unless `sampling` says otherwise."""
        return self.start(ids, max_new_tokens=max_new_tokens, ignore_eos=ignore_eos, sampling=sampling).run().tokens

    def generate_batch(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int | None = None, ignore_eos: bool = False,
                       sampling: Sampling | None = None) -> list[list[int]]:
        """New token ids for several prompts of any lengths, each as it would be alone."""
        made = runs.generate_batch(self.session, prompts, max_new_tokens=max_new_tokens, ignore_eos=ignore_eos, sampling=sampling)
        return [r.tokens for r in made]

    def batch_logits(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32 [B,S,vocab] of prompts [B,S] padded on either side, as `mask` says; zeros where there is padding."""
        return batch_logits(self.session, ids, mask)

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """float32 [len(ids), vocab], one row per prompt position."""
        return self.session.logits(ids)

    @property
    def conversations(self) -> Conversations:
        """The chat templates with their tokenizer. Raises Unsupported K520 without a tokenizer."""
        if self._conversations is None:
            self._conversations = Conversations(self.tokenizer)
        return self._conversations

    def render(self, messages: Messages, **options: Any) -> str:
        """The conversation in the model's own chat template, in `tool_use` if `tools` are given and there is one.

        Raises Unsupported K5xx when there is no template.
        """
        return self.conversations.render(messages, **options)

    def chat_ids(self, messages: Messages, *, parse_special: bool = False, note: Callable[[str], None] | None = None,
                 **options: Any) -> list[int]:
        """Token ids of a conversation; the template writes the special tokens, none is added.

        A control token in a message is plain text, so that no message ends its own turn, unless `parse_special`; either
        way `note` is told of it (default: a Python warning). Options are the template's: tools, add_generation_prompt, ...
        Raises as `render`, and Unsupported K536 when the template does not let such a token be plain text.
        """
        made = self.conversations.encode(messages, parse_special=parse_special, **options)
        if made.found:
            how = "parsed" if parse_special else "plain text; it can be parsed (--parse-special, parse_special=True)"
            (note or _warn)(f"control token {', '.join(map(repr, made.found))} in a message is {how}")
        return made.ids

    def chat(self, messages: Messages, *, max_new_tokens: int | None = None, sampling: Sampling | None = None,
             parse_special: bool = False, **options: Any) -> str:
        """The assistant's next message; `options` as in `chat_ids`."""
        ids = self.chat_ids(messages, parse_special=parse_special, **options)
        return self.start(ids, max_new_tokens=max_new_tokens, sampling=sampling).run().text


def no_tokenizer(folder: Path) -> Unsupported:
    """The refusal of a text for an artifact that ships no tokenizer."""
    return Unsupported("K520", "this artifact has no tokenizer: the checkpoint it was compiled from had none",
                       File(str(folder)), hint="give --token-ids, or compile from a folder with tokenizer files")


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=4)


def load(folder: Path | str, threads: int | None = None, device: str = "auto") -> Model:
    """Opens an artifact. `threads` defaults to the physical cores; raises Diagnostic when it cannot run here."""
    return Model(Session.open(folder, threads=threads, device=device))
