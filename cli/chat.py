"""`uaii-run DIR --chat`: a conversation in the terminal or through a pipe."""
from __future__ import annotations

import sys
from typing import Any

from uaii.cli.run import answer
from uaii.cli.shell import talk

HELP = "/system TEXT, /reset, /help, /exit; Ctrl-C stops an answer, Ctrl-D ends"


def converse(model: Any, sampling: Any, system: str | None, max_new_tokens: int | None, *, stats: bool) -> None:
    """Reads user turns line by line; the cache is kept between turns, so only new tokens are computed."""
    cache = model.session.cache()
    turns: list[dict[str, str]] = _opening(system)
    model.render([*turns, {"role": "user", "content": "x"}])  # a missing template is said before the first question
    asking = sys.stdin.isatty()
    if asking:
        talk.print(HELP, markup=False)
    while True:
        try:
            line = input("> " if asking else "").strip()
        except EOFError:
            return
        if not line:
            continue
        if line in ("/exit", "/quit"):
            return
        if line == "/help":
            talk.print(HELP, markup=False)
        elif line == "/reset":
            turns = _opening(system)
        elif line.startswith("/system"):
            system = line.removeprefix("/system").strip() or None
            turns = _opening(system)
        elif line.startswith("/"):
            talk.print(f"unknown command {line.split()[0]}; {HELP}", markup=False)
        else:
            turns.append({"role": "user", "content": line})
            result = answer(model, model.chat_ids(turns), cache=cache, sampling=sampling, stats=stats,
                            max_new_tokens=max_new_tokens)
            turns.append({"role": "assistant", "content": result.text})


def _opening(system: str | None) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}] if system else []
