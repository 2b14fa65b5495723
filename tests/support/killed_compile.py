"""Run as a script: compiles MODEL into OUT in one process per moment, each of which kills itself (SIGKILL) at that moment.

A moment is `weight:N` (when the N-th weight has been written), `finish:before|after` (the manifest), `rename:N:before|after`
(the N-th folder renamed) or `never`. Each compile gets a folder OUT/MOMENT/artifact of its own, as the caller left it.
"""
from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from uaii.backends.onnx import artifact
from uaii.compiler import compile_model


def main(model: str, out: str, *moments: str) -> None:
    for moment in moments:
        pid = os.fork()
        if pid == 0:
            _compile(Path(model), Path(out) / moment.replace(":", "-") / "artifact", moment)
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        print(moment, "killed" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL else f"ended {status}")


def _compile(model: Path, out: Path, moment: str) -> None:
    kind, _, rest = moment.partition(":")
    written = 0

    def progress(name: str, done: int, total: int) -> None:
        nonlocal written
        written += 1
        if kind == "weight" and written == int(rest):
            die()

    if kind == "finish":
        artifact.finish = _around(artifact.finish, rest, 1)  # type: ignore[assignment]
    if kind == "rename":
        nth, _, when = rest.partition(":")
        Path.rename = _around(Path.rename, when, int(nth))  # type: ignore[method-assign]
    compile_model(model, out, progress=progress)


def _around(f: Callable[..., Any], when: str, nth: int) -> Callable[..., Any]:
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and when == "before":
            die()
        result = f(*args, **kwargs)
        if calls == nth:
            die()
        return result
    return wrapped


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
