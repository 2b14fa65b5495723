"""What refusing costs: a process that only meets malformed files stays small, whatever sizes they declare."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from malformed_gguf import MALFORMED

LIMIT = 300  # MB of resident memory
CHILD = """
import sys, time
from pathlib import Path
from uaii.compiler import through_passes
from uaii.inspection import inspect
from uaii.ir.diag import Diagnostic
from uaii.ir.memory import peak_bytes

slowest = 0.0
for path in sorted(Path(sys.argv[1]).iterdir()):
    start = time.perf_counter()
    try:
        through_passes(path)
    except Diagnostic as error:
        assert inspect(path).blockers, path
        print(path.name, error.code)
    slowest = max(slowest, time.perf_counter() - start)
print("peak", (peak_bytes() or 0) >> 20, "MB; the slowest took", round(1000 * slowest), "ms")
"""


def test_refusing_a_malformed_file_takes_little_memory(tmp_path: Path) -> None:
    for i, (data, *_) in enumerate(MALFORMED.values()):
        (tmp_path / f"{i:02}.gguf").write_bytes(data.encode() if isinstance(data, str) else data)
    done = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, check=True)
    *refused, cost = done.stdout.splitlines()
    assert [line.split()[1] for line in refused] == [code for _, code, _, _ in MALFORMED.values()]
    print(cost)
    assert int(cost.split()[1]) < LIMIT, cost
