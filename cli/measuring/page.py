"""The tables of docs/performance.md, made from saved records.

`python -m uaii.cli.measuring.page docs` rewrites what stands between the markers: `<!-- generated: NAME -->` is made from
docs/performance/NAME.json, which `uaii bench TARGET --out` wrote. A test demands that it is current.
"""
from __future__ import annotations

import sys
from pathlib import Path

from uaii.cli.bench import markdown, read
from uaii.support import MARK


def filled(docs: Path) -> str:
    """The page with every marked part made anew."""
    page = (docs / "performance.md").read_text("utf-8")
    return MARK.sub(lambda m: f"{m[1]}{markdown(read(docs / 'performance' / f'{m[2]}.json'))}{m[3]}", page)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "performance.md").write_text(filled(folder), "utf-8")
