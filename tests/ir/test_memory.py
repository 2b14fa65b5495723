"""Memory figures are this process's own: a child's start neither at its parent's peak nor at the machine's memory."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tiny_llama_for_cli as tiny

import uaii
from uaii.ir import memory

FAT = 700 << 20  # more than a child below takes, and less than a machine for tests has
CHILD = """
import sys
from uaii.backends.ort.generate import generate
from uaii.backends.ort.session import Session
from uaii.cli.measuring.worker import Compile
from pathlib import Path
from uaii.compiler import compile_model
from uaii.ir.memory import peak_bytes
source, out = map(Path, sys.argv[1:])
print(peak_bytes())
print(compile_model(source, out / "a").summary["peak_bytes"])
print(generate(Session.open(out / "a"), [1, 2], max_new_tokens=1).run().stats.peak_rss_bytes)
print(Compile(source, {}, True).run()["compile"]["peak_bytes"])
"""


def test_a_child_of_a_fat_parent_reports_its_own_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UAII_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(Path(uaii.__file__).resolve().parent.parent))
    source = tiny.folder(tmp_path / "model")
    held = b"\1" * FAT
    assert (memory.peak_bytes() or 0) >= len(held)
    del held
    done = subprocess.run([sys.executable, "-c", CHILD, str(source), str(tmp_path)], capture_output=True, text=True, check=True)
    start, *peaks = map(int, done.stdout.split())
    assert len(peaks) == 3
    assert 5_000_000 < start <= peaks[0] <= peaks[1] < FAT and peaks[0] <= peaks[2] < FAT


def test_what_is_held_now_is_no_more_than_the_peak() -> None:
    assert 0 < (memory.resident_bytes() or 0) <= (memory.peak_bytes() or 0)


def test_without_proc_the_peak_is_what_getrusage_says(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(memory, "_text", lambda path: "")
    said = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert memory.resident_bytes() is None
    monkeypatch.setattr(sys, "platform", "linux")
    assert memory.peak_bytes() == said * 1024
    monkeypatch.setattr(sys, "platform", "darwin")
    assert memory.peak_bytes() == said
    monkeypatch.setattr(sys, "platform", "win32")
    assert memory.peak_bytes() is None


def test_memory_of_a_limited_group(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/proc/meminfo": "MemTotal:       1000 kB\nMemAvailable:    900 kB\n", "/sys/fs/cgroup/memory.max": "512000\n",
             "/sys/fs/cgroup/memory.current": "12000\n"}
    monkeypatch.setattr(memory, "_text", lambda path: files.get(path, ""))
    assert memory.available_bytes() == (512_000, 500_000)
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert memory.available_bytes() == (1_024_000, 921_600)
    files.clear()
    assert memory.available_bytes() == (0, 0)


@pytest.mark.parametrize(("n", "says"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (98_000_000, "98.0 MB"),
                                         (5e9, "5.0 GB"), (5e12, "5000.0 GB"), (None, "unknown")])
def test_sizes_for_a_person(n: float | None, says: str) -> None:
    assert memory.size(n) == says
