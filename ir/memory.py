"""Bytes of memory: what this process holds, held at its peak and may have; and how such a figure reads."""
from __future__ import annotations

import re
import sys
from pathlib import Path


def resident_bytes() -> int | None:
    """What this process has in memory now; None where the system does not say."""
    return _status("VmRSS")


def peak_bytes() -> int | None:
    """The most that this process has had in memory so far; None where the system does not say.

    On Linux it is VmHWM: a child's getrusage starts at the peak of its parent, so that serves only where there is no /proc.
    """
    known = _status("VmHWM")
    if known is not None or sys.platform == "win32":
        return known
    import resource
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def available_bytes() -> tuple[int, int]:
    """What this process may have, of its machine or container, and how much of that is free; 0 when the system does not say."""
    rows = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _text("/proc/meminfo"), re.M))
    total, free = (int(rows.get(k, 0)) * 1024 for k in ("MemTotal", "MemAvailable"))
    limit, used = _text("/sys/fs/cgroup/memory.max").strip(), _text("/sys/fs/cgroup/memory.current").strip()
    if limit.isdigit() and used.isdigit() and int(limit) < total:
        total, free = int(limit), min(free, int(limit) - int(used))
    return total, free


def size(n: float | None) -> str:
    """Bytes for a person; None reads unknown."""
    if n is None:
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return ""


def _status(row: str) -> int | None:
    found = re.search(rf"^{row}:\s+(\d+) kB$", _text("/proc/self/status"), re.M)
    return int(found[1]) * 1024 if found else None


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
