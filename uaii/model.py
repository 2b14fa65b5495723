"""An artifact ready to generate: session, tokenizer and chat template in one object."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from uaii.backends.ort import generate as runs
from uaii.backends.ort.cache import Cache
from uaii.backends.ort.padding import batch_logits
from uaii.backends.ort.sampling import Sampling
from uaii.backends.ort.session import Session
from uaii.frontend import chat
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

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises Unsupported K520 when the artifact ships none."""
        if self._tokenizer is None:
            raise Unsupported("K520", "this artifact has no tokenizer: the checkpoint it was compiled from had none",
                              File(str(self.folder)), hint="give --token-ids, or compile from a folder with tokenizer files")
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

    def render(self, messages: Messages, **options: Any) -> str:
        """The conversation in the model's own chat template. Raises Unsupported K5xx when it ships none."""
        tok = self.tokenizer
        template = chat.choose(tok.files.template, tok.files.templates, options.get("tools"))
        return chat.render(template, messages, bos_token=tok.bos_token, eos_token=tok.eos_token, **options)

    def chat_ids(self, messages: Messages, **options: Any) -> list[int]:
        """Token ids of a conversation; the template writes the special tokens, none is added."""
        return self.tokenizer.encode(self.render(messages, **options), add_special=False)

    def chat(self, messages: Messages, *, max_new_tokens: int | None = None, sampling: Sampling | None = None) -> str:
        """The assistant's next message."""
        return self.start(self.chat_ids(messages), max_new_tokens=max_new_tokens, sampling=sampling).run().text


def load(folder: Path | str, threads: int | None = None, device: str = "auto") -> Model:
    """Opens an artifact. `threads` defaults to the physical cores; raises Diagnostic when it cannot run here."""
    return Model(Session.open(folder, threads=threads, device=device))
