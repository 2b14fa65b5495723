"""Tables on stdout: drawn by rich on a terminal, plain aligned text in a pipe, where nothing is cut."""
from __future__ import annotations

import sys
from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

SHORT = 24  # columns whose cells are no longer than this are never folded


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = ()) -> None:
    """Prints rows under column names; those in `right` are aligned right."""
    cells = [[str(c) for c in row] for row in rows]
    if sys.stdout.isatty():
        drawn = Table(box=None, pad_edge=False)
        for c, *column in zip(columns, *cells, strict=True):
            short = max(map(len, column), default=0) <= SHORT
            drawn.add_column(Text(c), justify="right" if c in right else "left", overflow="fold", no_wrap=short)
        for row in cells:
            drawn.add_row(*(Text(c) for c in row))
        Console(highlight=False).print(drawn)
        return
    widths = [max(len(c) for c in column) for column in zip(columns, *cells, strict=True)]
    for row in [list(columns), *cells]:
        padded = [c.rjust(w) if n in right else c.ljust(w) for c, w, n in zip(row, widths, columns, strict=True)]
        click.echo("  ".join(padded).rstrip())


def pairs(rows: Sequence[tuple[str, object]]) -> None:
    """Prints names and values, one pair a line; never cut, whatever stdout is."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        click.echo(f"{name.ljust(width)}  {value}")
