"""Makes tests/goldens/FAMILY.json with transformers: `python tests/goldens/make.py [FAMILY ...]`.

Needs the `reference` extra. Entries of a case that has not changed are made again all the same.
"""
from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]

import all_cases  # noqa: E402
import parity  # noqa: E402
import transformers_oracle  # noqa: E402
from tiny_models import Case, write_folder  # noqa: E402


def entries(cases: tuple[Case, ...]) -> dict[str, Any]:
    """The golden of each case by name."""
    made = {}
    for case in cases:
        with tempfile.TemporaryDirectory() as temp:
            made[case.name] = parity.to_golden(case, transformers_oracle.run(case, write_folder(Path(temp), case)))
    return made


def main(names: list[str]) -> None:
    for name, module in all_cases.families().items():
        if not names or name in names:
            lines = [f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in entries(module.CASES).items()]
            parity.golden_path(name).write_text("{" + ",\n".join(lines) + "}\n")
            print(f"{name}: {len(module.CASES)} cases, {parity.golden_path(name).stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
