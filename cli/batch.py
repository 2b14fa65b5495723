"""`uaii-run DIR --batch IN.jsonl --out OUT.jsonl`: many prompts, one JSON object a line, resumed where it stopped."""
from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from uaii.cli.batch_lines import DRAWN, SAMPLING, Job, opened, parsed, pending, written
from uaii.cli.run import choose
from uaii.cli.shell import data, talk
from uaii.ir.diag import Diagnostic, Usage
from uaii.ir.loc import File


@dataclass
class Plan:
    """What holds for every line that does not say otherwise."""

    model: Any
    options: dict[str, Any]
    sampling: dict[str, Any]
    conversation: dict[str, Any]
    chatting: bool
    system: str | None


def run_batch(model: Any, source: Path, out: Path | None, size: int, options: dict[str, Any], sampling: dict[str, Any],
              conversation: dict[str, Any], *, chatting: bool, system: str | None, quiet: bool, fmt: str) -> None:
    """Answers every line of `source` that `out` does not hold yet, `size` lines together, in order.

    An output line has `id`, `line`, `input` and a run's JSON, or `error`; a line that fails does not stop the others. Ctrl-C
    keeps what is whole. Raises Usage U035, U051 (it cannot be written) and U052 (it holds another batch's lines).
    """
    if out is not None and out.exists() and source.exists() and out.samefile(source):
        raise Usage("U051", f"{out} is the input itself", File(str(out)), hint="choose another place with --out")
    plan = Plan(model, options, sampling, conversation, chatting, system)
    counts = {"done": 0, "failed": 0, "skipped": 0}
    with opened(source) as lines, written(out) as (sink, there), bar(source, quiet or fmt == "json") as step:
        jobs = pending(lines, there, out, counts, step)
        while group := list(islice(jobs, size)):
            whole = answered(plan, group)
            for job in whole:
                counts["failed" if "error" in job.made else "done"] += 1
                sink.write(json.dumps(job.record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
                sink.flush()
                step(1)
            if len(whole) < len(group):
                raise KeyboardInterrupt
    if fmt == "json" and out is not None:
        data(counts)
    elif not quiet:
        talk.print(", ".join(f"{n} {what}" for what, n in counts.items()), markup=False)


def answered(plan: Plan, group: list[Job]) -> list[Job]:
    """Runs a group; those that an interrupt broke off are left out."""
    from uaii.backends.ort.generate import continue_rows

    rows = {}
    for job in group:
        try:
            rows[job.line] = row(plan, job)
        except Diagnostic as err:
            job.made = {"error": err.record()}
    going = [job for job in group if job.line in rows]
    steps: list[list[dict[str, Any]]] = [[] for _ in going]
    try:
        results = continue_rows(plan.model.session, [rows[job.line] for job in going], lambda i, s: steps[i].append(
            {"id": s.id, "logprob": s.logprob, "top": s.top}))
    except Diagnostic as err:
        if len(going) > 1:  # one of them is at fault: alone, the others are answered
            return [whole for job in group for whole in answered(plan, [job])]
        going[0].made = {"error": err.record()}
        return group
    for job, result, logs in zip(going, results, steps, strict=True):
        job.made = result.record() | ({"logprobs": logs} if plan.options["logprobs"] else {})
    return [job for job in group if job.made.get("finish_reason") != "interrupted"]


def row(plan: Plan, job: Job) -> Any:
    """The sequence to continue for a line. Raises Usage U050 for a line that is wrong, and what a run raises."""
    from uaii.backends.ort.continuation import Continuation, Request

    job.notes, said = [], parsed(job.raw)
    job.said = said
    ids, options = ids_of(plan, job), plan.options
    stops = said.get("stop", options["stop_strings"])
    request = Request.checked(plan.model.session, said.get("max_new_tokens", options["max_new_tokens"]), None,
                              said.get("ignore_eos", options["ignore_eos"]), [stops] if isinstance(stops, str) else stops,
                              options["logprobs"])
    return Continuation(plan.model.session, ids, request, sampling_of(plan, said), plan.model.stream())


def sampling_of(plan: Plan, said: dict[str, Any]) -> Any:
    """A line's sampling: what it says wins over the command, also where the two exclude each other."""
    own = {key: said[key] for key in SAMPLING if key in said}
    drawn = any(key in own for key in DRAWN)
    rest = {key: value for key, value in plan.sampling.items()
            if not (key == "greedy" and drawn) and not (key in DRAWN and own.get("greedy"))}
    return choose({"greedy": False} | rest | own)


def ids_of(plan: Plan, job: Job) -> list[int]:
    """The prompt's ids: as given, of the conversation, or of the text, which --chat makes a conversation."""
    said = job.said
    if "token_ids" in said:
        return list(said["token_ids"])
    if "prompt" in said and not plan.chatting:
        return list(plan.model.tokenizer.encode(said["prompt"]))
    turns = [{"role": "system", "content": plan.system}] if plan.system is not None else []
    messages = said["messages"] if "messages" in said else [*turns, {"role": "user", "content": said["prompt"]}]
    tools = {"tools": said["tools"]} if "tools" in said else {}
    return list(plan.model.chat_ids(messages, **plan.conversation | tools | {"note": job.notes.append}))


@contextmanager
def bar(source: Path, silent: bool) -> Iterator[Callable[[int], None]]:
    """Progress over the lines; nothing when stderr is not a terminal."""
    from rich.progress import Progress

    with Progress(console=talk, disable=silent or not talk.is_terminal, transient=True) as progress:
        total = None
        if not progress.disable and source.is_file():
            with source.open("rb") as f:
                total = sum(1 for _ in f)
        task = progress.add_task(source.name, total=total)
        yield lambda n: progress.advance(task, n)
