"""The engines that are measured, each behind the same three methods: load, prefill, step."""
from __future__ import annotations

import ctypes
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar


@dataclass(frozen=True)
class Spec:
    """What an engine is to load: a file or folder, and how many tokens of one text it must have room for."""

    path: str
    threads: int
    room: int


class Peer(ABC):
    """One engine, greedy, one text at a time, on `threads` threads.

    `package` is what pip installs, `module` what Python imports. `cache_bytes` is the size of one cached number where it is not
    the artifact's; `options` says what was set besides threads.
    """

    package: ClassVar[str]
    module: ClassVar[str]
    cache_bytes: ClassVar[int | None] = None
    options: ClassVar[dict[str, Any]] = {}

    @abstractmethod
    def load(self, spec: Spec) -> None:
        """Make the engine ready for its first token."""

    @abstractmethod
    def prefill(self, ids: Sequence[int], fresh: bool) -> None:
        """Run these tokens after the text so far, or as a new text, and choose the next token."""

    @abstractmethod
    def step(self) -> None:
        """Run the token that was chosen last and choose the next."""


class Uaii(Peer):
    """The artifact as `uaii run` runs it."""

    package, module = "uaii", "onnxruntime"

    def load(self, spec: Spec) -> None:
        """Open a session; the cache grows as it does for any user."""
        from uaii.backends.ort.session import Session
        self.session = Session.open(spec.path, threads=spec.threads, device="cpu")

    def prefill(self, ids: Sequence[int], fresh: bool) -> None:
        """A generation over the whole text; what the cache holds of it is not run again."""
        from uaii.backends.ort.generate import generate
        if fresh:
            self.cache, self.text = self.session.cache(), list[int]()
        self.text += ids
        self.steps = generate(self.session, self.text, ignore_eos=True, cache=self.cache)
        self.text.append(next(self.steps).id)

    def step(self) -> None:
        """The generation's next step."""
        self.text.append(next(self.steps).id)


class LlamaCpp(Peer):
    """llama.cpp on the GGUF file, through its C interface: Python adds two calls a token."""

    package, module, cache_bytes = "llama-cpp-python", "llama_cpp", 2
    options: ClassVar[dict[str, Any]] = {"n_batch": 512, "n_ubatch": 512, "flash_attn": True}

    def load(self, spec: Spec) -> None:
        """Threads for single tokens and for prompts alike; memory-mapped weights and a cache of f16, its defaults."""
        self.lib: Any = import_module(self.module)
        self.model = self.lib.Llama(spec.path, n_ctx=spec.room, n_threads=spec.threads, n_threads_batch=spec.threads,
                                    n_gpu_layers=0, verbose=False, **self.options)
        self.sampler = self.lib.llama_sampler_init_greedy()
        self.next: list[int] = []

    def prefill(self, ids: Sequence[int], fresh: bool) -> None:
        """In batches of 512; logits of the last token only."""
        if fresh:
            self.lib.llama_memory_clear(self.lib.llama_get_memory(self.model.ctx), True)
            self.next = []
        line = [*self.next, *ids]
        for at in range(0, len(line), 512):
            self._run(line[at:at + 512])
        self._choose()

    def step(self) -> None:
        """One token."""
        self._run(self.next)
        self._choose()

    def _run(self, ids: Sequence[int]) -> None:
        line = (ctypes.c_int32 * len(ids))(*ids)  # borrowed by the batch
        batch = self.lib.llama_batch_get_one(line, len(ids))
        if self.lib.llama_decode(self.model.ctx, batch):
            raise RuntimeError("llama_decode failed")

    def _choose(self) -> None:
        self.next = [self.lib.llama_sampler_sample(self.sampler, self.model.ctx, -1)]


class Genai(Peer):
    """onnxruntime-genai on a folder with genai_config.json: its own build, or a uaii artifact."""

    package, module = "onnxruntime-genai", "onnxruntime_genai"

    def load(self, spec: Spec) -> None:
        """The folder's own settings, but for the threads."""
        self.lib: Any = import_module(self.module)
        config, self.room = self.lib.Config(spec.path), spec.room
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": spec.threads}}}}))
        self.model = self.lib.Model(config)

    def prefill(self, ids: Sequence[int], fresh: bool) -> None:
        """A token that was chosen and not run yet is taken back first: append_tokens would leave a gap there."""
        if fresh:
            params = self.lib.GeneratorParams(self.model)
            params.set_search_options(max_length=self.room, min_length=self.room, do_sample=False)  # no end before that
            self.text = self.lib.Generator(self.model, params)
        else:
            self.text.rewind_to(self.text.token_count() - 1)
        self.text.append_tokens(list(ids))
        self.text.generate_next_token()

    def step(self) -> None:
        """One token."""
        self.text.generate_next_token()


class Transformers(Peer):
    """transformers in f32 on the checkpoint's folder; no remote code."""

    package, module = "transformers", "transformers"
    cache_bytes = 4
    options: ClassVar[dict[str, Any]] = {"dtype": "float32"}

    def load(self, spec: Spec) -> None:
        """From the folder alone."""
        self.torch: Any = import_module("torch")
        self.torch.set_num_threads(spec.threads)
        self.torch.set_grad_enabled(False)
        kind = import_module(self.module).AutoModelForCausalLM
        self.model = kind.from_pretrained(spec.path, local_files_only=True, **self.options).eval()
        self.past: Any = None
        self.next: list[int] = []

    def prefill(self, ids: Sequence[int], fresh: bool) -> None:
        """In one call; logits of the last token only."""
        if fresh:
            self.past, self.next = None, []
        self._run([*self.next, *ids])

    def step(self) -> None:
        """One token."""
        self._run(self.next)

    def _run(self, ids: Sequence[int]) -> None:
        made = self.model(self.torch.tensor([list(ids)]), past_key_values=self.past, use_cache=True, logits_to_keep=1)
        self.past, self.next = made.past_key_values, [int(made.logits[0, -1].argmax())]


PEERS: dict[str, type[Peer]] = {"uaii": Uaii, "llama.cpp": LlamaCpp, "genai": Genai, "genai-artifact": Genai, "artifact": Uaii,
                                "transformers": Transformers}
