"""The examples run as they are written."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from uaii.inspection import inspect

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, cwd=EXAMPLES.parent)


def test_a_question_is_answered(smollm2: Path) -> None:
    done = run(str(EXAMPLES / "ask.py"), str(smollm2), "What is the capital of France?")
    assert done.returncode == 0, done.stderr
    assert "The capital of France is Paris." in done.stdout


def test_what_cannot_be_compiled_is_said() -> None:
    done = run(str(EXAMPLES / "ask.py"), str(EXAMPLES), "Hello")
    assert done.returncode == 1 and done.stderr.startswith("error[")


def test_a_pass_of_ones_own() -> None:
    done = run(str(EXAMPLES / "own_pass.py"))
    assert done.returncode == 0, done.stderr
    assert "by=2.0" in done.stdout and "declined" in done.stdout


def test_a_made_up_file_of_a_models_shape(tmp_path: Path) -> None:
    done = run(str(EXAMPLES / "synthetic_gguf.py"), str(tmp_path / "m.gguf"), "1", "512")
    assert done.returncode == 0, done.stderr
    assert inspect(tmp_path / "m.gguf").ok


def test_what_is_no_file_name_makes_no_file(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLES / "synthetic_gguf.py"), "--help"], capture_output=True, text=True,
                          cwd=tmp_path)
    assert done.returncode == 1 and "OUT.gguf" in done.stderr and not list(tmp_path.iterdir())
