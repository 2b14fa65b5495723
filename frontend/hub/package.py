"""Whether huggingface_hub, the package of the hub's publisher, is here in a version that uaii was tested with."""
from __future__ import annotations

import importlib
import re
from typing import Any

OLDEST, TOO_NEW = (1, 31), (3, 0)
RANGE = ">=1.31,<3"


def find() -> Any | None:
    """The package, where it can be imported in a version that was tested; else None."""
    try:
        package = importlib.import_module("huggingface_hub")
        major, minor = (int(n) for n in re.findall(r"\d+", package.__version__)[:2])
    except Exception:  # a broken package raises anything
        return None
    return package if OLDEST <= (major, minor) < TOO_NEW else None
