"""Run as a module by a parent process: reads a pickled job on stdin, does it, writes the pickled reply to stdout.

One job a process: thread pools of two engines never meet, and the process's memory is the job's own.
"""
from __future__ import annotations

import os
import pickle
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from uaii import __version__
from uaii.cli.measuring.peers import PEERS, Peer, Spec
from uaii.ir.diag import Diagnostic
from uaii.ir.memory import peak_bytes, resident_bytes

WARM = 4  # steps before anything is timed
Reply = dict[str, Any]


@dataclass(frozen=True)
class Engine:
    """Load an engine and time it: each prompt as a new text, `new` steps after the first prompt, then one long text that stops
    at each context for `steps` steps. `ids` are as many as the longest of them needs."""

    peer: str
    spec: Spec
    ids: tuple[int, ...]
    prompts: tuple[int, ...] = ()
    new: int = 0
    contexts: tuple[int, ...] = ()
    steps: int = 0

    def run(self) -> Reply:
        """Seconds, and resident bytes of this process: `start` with the engine's library imported, `loaded` and `peak`."""
        peer = PEERS[self.peer]()
        import_module(peer.module)
        start, begun = resident_bytes(), time.perf_counter()
        peer.load(self.spec)
        reply: Reply = {"load_seconds": time.perf_counter() - begun, "start_bytes": start, "loaded_bytes": resident_bytes(),
                        "version": __version__ if peer.package == "uaii" else metadata.version(peer.package),
                        "prefill": [], "decode": None, "contexts": []}
        peer.prefill(self.ids[:16], True)
        for _ in range(WARM):
            peer.step()
        for count in self.prompts:
            reply["prefill"].append({"tokens": count, "seconds": _timed(peer.prefill, self.ids[:count], True)})
            if reply["decode"] is None and self.new:
                times = [_timed(peer.step) for _ in range(self.new)]
                reply["decode"] = {"tokens": self.new, "seconds": sum(times), "median_step_seconds": statistics.median(times)}
        self._fill(peer, reply)
        reply["peak_bytes"] = peak_bytes()
        return reply

    def _fill(self, peer: Peer, reply: Reply) -> None:
        run = 0  # tokens of the text that have run; one more is chosen
        for context in self.contexts:
            fill = _timed(peer.prefill, self.ids[run + 1 if run else 0:context], not run)
            times = [_timed(peer.step) for _ in range(self.steps)]
            reply["contexts"].append({"context": context, "fill_tokens": context - run, "fill_seconds": fill,
                                      "median_step_seconds": statistics.median(times)})
            run = context + self.steps


@dataclass(frozen=True)
class Compile:
    """Compile a checkpoint into the cache that `uaii generate` uses, unless it is there."""

    path: Path
    options: dict[str, Any]
    silent: bool

    def run(self) -> Reply:
        """The artifact's folder; seconds and this process's peak memory in bytes if it was compiled now, else None."""
        from uaii.cli.generate import cached, compiled
        (_, there), begun = cached(self.path, self.options), time.perf_counter()
        out = compiled(self.path, self.options, self.silent)
        took = None if there else {"seconds": time.perf_counter() - begun, "peak_bytes": peak_bytes()}
        return {"artifact": str(out), "compile": took}


@dataclass(frozen=True)
class Bandwidth:
    """Read memory as fast as NumPy can: each thread goes through a buffer of its own, `nbytes` long."""

    threads: int
    nbytes: int
    seconds: float

    def run(self) -> Reply:
        """The median over sweeps of the kernel that reads fastest here, in bytes a second; reductions release the GIL."""
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        import numpy as np
        buffers = [np.ones(self.nbytes // 8, np.float64) for _ in range(self.threads)]
        kernels: list[Callable[[Any], Any]] = [
            np.add.reduce, lambda x: np.maximum.reduce(x.view(np.float32)), lambda x: np.bitwise_or.reduce(x.view(np.uint64)),
            lambda x: np.dot(x, x)]
        rates = []
        for kernel in kernels:
            seen: list[float] = []
            end = time.perf_counter() + self.seconds / len(kernels)
            while len(seen) < 3 or time.perf_counter() < end:
                seen.append(self.threads * self.nbytes / _together(kernel, buffers))
            rates.append(statistics.median(seen))
        return {"bytes_per_second": max(rates)}


def _together(kernel: Callable[[Any], Any], buffers: list[Any]) -> float:
    threads = [threading.Thread(target=kernel, args=(b,)) for b in buffers]
    begun = time.perf_counter()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return time.perf_counter() - begun


def _timed(call: Callable[..., None], *args: Any) -> float:
    begun = time.perf_counter()
    call(*args)
    return time.perf_counter() - begun


def main() -> None:
    """What an engine prints must not reach the reply: its stdout becomes stderr."""
    reply = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    job = pickle.load(sys.stdin.buffer)
    try:
        result = job.run()
    except Diagnostic as err:
        result = err
    except Exception as err:  # an engine raises whatever its library does
        result = RuntimeError(f"{type(err).__name__}: {' '.join(str(err).split())}")
    with reply:
        pickle.dump(result, reply)


if __name__ == "__main__":
    main()
