"""What every refused compile has in common: a diagnostic, its exit code, and nothing on disk."""
from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from tiny_models import Arrays, Case, Config, write_config, write_folder

from uaii.compiler import compile_model
from uaii.ir.diag import Diagnostic


def refused(checkpoint: Path, **options: Any) -> Diagnostic:
    """The diagnostic of a compile that must fail; neither the output nor a part of it is left."""
    with tempfile.TemporaryDirectory() as parent:
        with pytest.raises(Diagnostic) as caught:
            compile_model(checkpoint, Path(parent) / "out", **options)
        assert list(Path(parent).iterdir()) == []
    return caught.value


def refused_config(folder: Path, config: Config, **options: Any) -> Diagnostic:
    """The same for a folder whose config.json is replaced, its weights kept."""
    write_config(folder, config)
    return refused(folder, **options)


def refused_tensors(path: Path, case: Case, tensors: Arrays, **options: Any) -> Diagnostic:
    """The same for a case with other tensors."""
    return refused(write_folder(path / "model", case, tensors), **options)
