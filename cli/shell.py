"""What every command shares: how errors become exit codes, and where talk and data go."""
from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, ParamSpec

import click
from rich.console import Console

from uaii.ir.diag import Diagnostic

P = ParamSpec("P")
talk = Console(stderr=True, highlight=False, soft_wrap=True)  # stdout is data, stderr is talk
FORMAT = click.option("--format", "fmt", type=click.Choice(["text", "json"]), default="text", show_default=True,
                      help="json prints one object on stdout, errors included.")


def guarded(f: Callable[P, None]) -> Callable[P, None]:
    """Runs a command: a Diagnostic is printed and becomes its exit code (2, 3, 4 or 1), Ctrl-C 130, a closed pipe 0.

    With --format json the diagnostic is {"error": {...}} on stdout as well.
    """
    @functools.wraps(f)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            f(*args, **kwargs)
            sys.stdout.flush()
        except Diagnostic as err:
            if kwargs.get("fmt") == "json":
                data({"error": err.record()})
            print(err, file=sys.stderr)
            sys.exit(err.exit_code)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            sys.exit(130)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except MemoryError:
            print("error[M001]: not enough memory\n   = help: free memory, or use a quantised GGUF of this model",
                  file=sys.stderr)
            sys.exit(1)
    return run


def stop_on_sigterm() -> None:
    """SIGTERM unwinds like Ctrl-C, so that what was half-written is removed."""
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt
    signal.signal(signal.SIGTERM, interrupt)


def data(record: Any) -> None:
    """One JSON object on stdout."""
    click.echo(json.dumps(record, ensure_ascii=False))
