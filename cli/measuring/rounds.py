"""The rounds: one child process a measurement, engines in turn, so that a slow moment of the machine meets all of them."""
from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import uaii
from uaii.cli.measuring.peers import Spec
from uaii.cli.measuring.worker import Bandwidth, Engine, Reply
from uaii.ir.diag import Diagnostic, Internal


class Job(Protocol):
    """What a child does."""

    def run(self) -> Reply:
        """Its reply."""


class Failed(Exception):
    """A child that had no reply: what its engine raised, or how the process ended."""


@dataclass(frozen=True)
class Contender:
    """An engine, what it loads, and the weight bytes that one of its steps reads (None: not known)."""

    name: str
    path: str
    read_per_token: int | None


@dataclass(frozen=True)
class Plan:
    """What is measured. Sizes in tokens; `read_bytes` and `read_seconds` are of one bandwidth measurement."""

    threads: tuple[int, ...]
    prompts: tuple[int, ...]
    new: int
    contexts: tuple[int, ...]
    rounds: int
    context_rounds: int
    context_steps: int
    read_bytes: int
    read_seconds: float
    vocab: int

    def jobs(self, who: Contender, threads: int, contexts: bool) -> Engine:
        """An engine's job; prompts are random ids, the same for all engines, away from the first few (special) ones."""
        room = self.contexts[-1] + self.context_steps + 1 if contexts else max(self.prompts) + self.new + 16
        least = min(3, self.vocab - 1)
        ids = tuple(np.random.RandomState(0).randint(least, self.vocab, max(room, 16)).tolist())
        spec = Spec(who.path, threads, max(room, 32))
        if contexts:
            return Engine(who.name, spec, ids, contexts=self.contexts, steps=self.context_steps)
        return Engine(who.name, spec, ids, self.prompts, self.new)


def child(job: Job, quiet: bool = True) -> Reply:
    """Does a job in a process of its own. Raises Failed, and the Diagnostic that the job raised."""
    root = str(Path(uaii.__file__).resolve().parent.parent)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    # a group of its own: Ctrl-C is the parent's to handle, and engines print what they like when they are interrupted
    process = subprocess.Popen([sys.executable, "-P", "-m", "uaii.cli.measuring.worker"], stdin=subprocess.PIPE, env=env,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE if quiet else None, process_group=0)
    try:
        out, err = process.communicate(pickle.dumps(job))
    except BaseException:
        process.kill()
        process.wait()
        raise
    if not out:
        last = (err or b"").decode(errors="replace").strip().splitlines()[-1:]
        raise Failed(" ".join([f"its process ended with {process.returncode}", *last]))
    reply = pickle.loads(out)
    if isinstance(reply, Diagnostic):
        raise reply
    if isinstance(reply, RuntimeError):
        raise Failed(str(reply))
    return dict(reply)


class Rounds:
    """Measurements as they come in: `rows` of engines, `bandwidth` in bytes a second, and the engines that `failed`, with why.

    `interrupted` says that Ctrl-C ended it; what was measured before stays.
    """

    def __init__(self, plan: Plan, who: list[Contender], say: Callable[[str], None]) -> None:
        self.plan, self.who, self.say = plan, list(who), say
        self.rows: list[dict[str, Any]] = []
        self.bandwidth: list[dict[str, Any]] = []
        self.failed: dict[str, str] = {}
        self.interrupted = False

    def run(self) -> None:
        """Every round. Raises Diagnostic when uaii itself fails, KeyboardInterrupt when nothing was measured yet."""
        try:
            for round_, threads, contexts in self._order():
                self.say(f"{'contexts' if contexts else 'round'} {round_ + 1}, {threads} thread{'s' * (threads > 1)}")
                if not contexts:
                    made = child(Bandwidth(threads, self.plan.read_bytes, self.plan.read_seconds))
                    self.bandwidth.append({"round": round_, "threads": threads, **made})
                for who in list(self.who):
                    self._measure(who, round_, threads, contexts)
        except KeyboardInterrupt:
            if not self.rows:
                raise
            self.interrupted = True

    def _order(self) -> Iterator[tuple[int, int, bool]]:
        for round_ in range(self.plan.rounds):
            yield from ((round_, threads, False) for threads in self.plan.threads)
        for round_ in range(self.plan.context_rounds if self.plan.contexts else 0):
            yield from ((round_, threads, True) for threads in self.plan.threads)

    def _measure(self, who: Contender, round_: int, threads: int, contexts: bool) -> None:
        try:
            made = child(self.plan.jobs(who, threads, contexts))
        except (Failed, Diagnostic) as err:
            if who.name == "uaii":
                raise err if isinstance(err, Diagnostic) else Internal(
                    "U064", f"uaii could not be measured: {err}", hint="please report this with the command") from None
            self.failed[who.name] = str(err)
            self.who.remove(who)
            self.say(f"{who.name} is left out: {err}")
            return
        self.rows.append({"kind": "contexts" if contexts else "prompts", "round": round_, "threads": threads, "peer": who.name,
                          **made})
