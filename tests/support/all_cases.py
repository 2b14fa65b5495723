"""Every family's tiny checkpoints, found by walking the folder of cases."""
from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import family_cases
from tiny_models import Case


def families() -> dict[str, ModuleType]:
    """The modules of cases by family name; each has CASES."""
    names = sorted(info.name for info in pkgutil.iter_modules(family_cases.__path__))
    return {name: importlib.import_module(f"family_cases.{name}") for name in names}


def cases() -> list[tuple[str, Case]]:
    """(family, case) for every case."""
    return [(family, case) for family, module in families().items() for case in module.CASES]


def names() -> list[str]:
    """Test ids for `cases`."""
    return [f"{family}-{case.name}" for family, case in cases()]
