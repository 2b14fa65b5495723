"""Collects the IR cases of tests/**/*.uir, and compiles the real model once."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uir

from uaii.cli.demo import model_file
from uaii.compiler import Artifact, compile_model


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="write what comes out of .uir cases into their files")


def pytest_collect_file(parent: pytest.Collector, file_path: Path) -> pytest.File | None:
    return UirFile.from_parent(parent, path=file_path) if file_path.suffix == ".uir" else None


class UirFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        for case in uir.read_cases(self.path):
            yield UirItem.from_parent(self, name=case.name, case=case)


class UirItem(pytest.Item):
    def __init__(self, *, case: uir.Case, **kw: Any) -> None:
        super().__init__(**kw)
        self.case = case

    def runtest(self) -> None:
        uir.check(self.case, self.config.getoption("--bless"))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name

    def repr_failure(self, info: pytest.ExceptionInfo[BaseException]) -> str:
        return str(info.value) if isinstance(info.value, AssertionError) else str(super().repr_failure(info))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a Q4_1 GGUF (98 MB)."""
    return model_file()


@pytest.fixture(scope="session")
def smollm2_artifact(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The same, compiled for the CPU with its weights packed."""
    return compile_model(smollm2, tmp_path_factory.mktemp("smollm2") / "artifact")
