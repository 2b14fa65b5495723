"""The machine that figures belong to, and whether something else was using it."""
from __future__ import annotations

import os
import platform
import re
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from uaii.backends.ort.device import usable_cores
from uaii.cli.doctor import SPEED
from uaii.ir.memory import available_bytes

BUSY = 0.1      # share of the processor's time that others may take before a warning
STOLEN = 0.02   # share that the hypervisor may take


def machine() -> dict[str, Any]:
    """Processor, instructions that matter to the kernels, cores, bytes of memory, system, versions."""
    said = _text("/proc/cpuinfo")
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", said, re.M)
    name = re.search(r"^model name\s*:\s*(.+)$", said, re.M)
    have = flags[1].split() if flags else []
    return {"cpu": name[1] if name else platform.processor() or platform.machine(), "cores": usable_cores(),
            "isa": [s for s in SPEED if s in have], "memory_bytes": available_bytes()[0] or None,
            "system": f"{platform.system()} {platform.machine()}", "python": platform.python_version(),
            "versions": {name: metadata.version(name) for name in ("onnxruntime", "onnx", "numpy")}}


class Watch:
    """Watches the processor's time from its making on; everything is None where the system does not say."""

    def __init__(self, seconds: float) -> None:
        first = _ticks()
        time.sleep(seconds)
        self.begun = _ticks()
        spent = [b - a for a, b in zip(first, self.begun, strict=True)]
        self.busy = round(1 - (spent[3] + spent[4]) / sum(spent), 3) if sum(spent) else None
        self.load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None

    def stolen(self) -> float | None:
        """The share of the time since then that the hypervisor gave to others."""
        spent = [b - a for a, b in zip(self.begun, _ticks(), strict=True)]
        return round(spent[7] / sum(spent), 3) if sum(spent) else None

    def warnings(self) -> list[str]:
        """What makes the figures doubtful, for a person."""
        out = []
        if (self.busy or 0) > BUSY or (self.load or 0) > usable_cores() / 2:
            out.append(f"the machine was busy before the first round (processor {100 * (self.busy or 0):.0f} % in use, load "
                       f"{self.load}): figures are too low, and engines that spin suffer most")
        if (self.stolen() or 0) > STOLEN:
            out.append(f"the hypervisor took {100 * (self.stolen() or 0):.0f} % of the processor's time meanwhile")
        return out


def _ticks() -> list[int]:
    """user, nice, system, idle, iowait, irq, softirq, steal of all processors; zeros where there is no /proc."""
    found = re.match(r"cpu +((?:\d+ ){7}\d+)", _text("/proc/stat"))
    return [int(n) for n in found[1].split()] if found else [0] * 8


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
