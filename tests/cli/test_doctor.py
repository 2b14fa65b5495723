"""`uaii doctor` finds what is missing, too old, broken or not really usable, and says how to mend it."""
from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest
from click.testing import CliRunner, Result

import uaii
from uaii.cli import doctor
from uaii.cli.doctor import main, package, satisfies, split, tiny_model, unusable


def run(*options: str) -> Result:
    return CliRunner().invoke(main, list(options))


def findings() -> dict[str, dict[str, Any]]:
    result = run("--format", "json")
    said = json.loads(result.stdout)
    assert said["ok"] == (result.exit_code == 0)
    return {f["name"]: f for f in said["findings"]}


def test_a_machine_that_passes_these_tests_is_well() -> None:
    result = run()
    assert (result.exit_code, "status: ok" in result.stdout) == (0, True), result.stdout
    assert "uaii inspect MODEL" in result.stdout


def test_versions_are_those_in_use() -> None:
    found = findings()
    assert found["uaii"]["value"].startswith(uaii.__version__)
    for name in ("onnx", "onnxruntime", "numpy"):
        assert found[name]["value"] == importlib.import_module(name).__version__
    for name in ("tokenizers", "gguf", "sentencepiece", "python", "CPUExecutionProvider", "processor", "memory", "cache"):
        assert found[name]["state"] == "ok"


@pytest.mark.parametrize("name", ["gguf", "onnx", "onnxruntime", "tokenizers"])
def test_a_package_that_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def absent(module: str, *rest: Any) -> Any:
        if module == name:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return real(module, *rest)

    monkeypatch.setattr(doctor.importlib, "import_module", absent)
    found, result = findings(), run()
    assert (found[name]["value"], found[name]["state"]) == ("not installed", "problem")
    assert found[name]["fix"].startswith(f'pip install "{name}>=')
    assert result.exit_code == 3
    assert f'   = help: pip install "{name}>=' in result.stdout and "problems found" in result.stdout


def test_a_session_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    found = findings()
    assert found["onnx"]["state"] == found["CPUExecutionProvider"]["state"] == "problem"


def test_a_broken_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brokenpkg.py").write_text("raise OSError('libfoo.so.1: cannot open')")
    (tmp_path / "needypkg.py").write_text("import notthere_xyz")
    monkeypatch.syspath_prepend(str(tmp_path))
    broken, needy = package("brokenpkg", ">=1"), package("needypkg", "")
    assert (broken.state, broken.fix) == ("problem", 'pip install "brokenpkg>=1" --force-reinstall')
    assert "libfoo.so.1" in broken.value
    assert (needy.state, needy.fix) == ("problem", "pip install notthere_xyz")


def test_a_version_outside_the_bounds() -> None:
    found = package("numpy", ">=99,<100")
    assert (found.state, found.fix) == ("problem", 'pip install "numpy>=99,<100"')
    assert "uaii needs >=99,<100" in found.value


@pytest.mark.parametrize(("version", "bounds", "fits"), [
    ("1.32.0", ">=1.32,<1.33", True), ("1.33.0", ">=1.32,<1.33", False), ("1.31.9", ">=1.32,<1.33", False),
    ("2.0", ">=2.0,<3", True), ("0.23.3", ">=0.22,<0.24", True), ("3.0.0", "<3", False), ("2.13.0+cu130", "==2.13.0", True),
    ("1.32.1rc1", ">1.32.0", True), ("10.0", ">=9", True), ("1.0", "", True), ("1.5", "!=1.5", False)])
def test_bounds(version: str, bounds: str, fits: bool) -> None:
    assert satisfies(version, bounds) is fits


def test_requirements_are_read() -> None:
    assert split("numpy>=2.0,<3") == ("numpy", ">=2.0,<3")
    assert split('typing-extensions ; python_version < "3.12"') == ("typing-extensions", "")


def test_a_provider_is_believed_only_with_a_session() -> None:
    assert unusable(tiny_model(), "CPUExecutionProvider") == ""
    listed = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    assert listed or unusable(tiny_model(), "CUDAExecutionProvider").startswith("not usable: ")
    assert unusable(tiny_model(), "NoSuchExecutionProvider").startswith("not usable: ")


def test_a_provider_that_falls_back_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr("uaii.backends.ort.device.cuda_missing", lambda: "")

    class Fallen:
        def __init__(self, *_: Any, **options: Any) -> None:
            pass

        def get_providers(self) -> list[str]:
            return ["CPUExecutionProvider"]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Fallen)
    found = findings()
    assert found["CUDAExecutionProvider"]["state"] == "problem"
    assert "took CPUExecutionProvider instead" in found["CUDAExecutionProvider"]["value"]
    assert found["CPUExecutionProvider"]["state"] == "ok"


def test_the_cache_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UAII_CACHE", str(tmp_path))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "x").write_bytes(bytes(12_300))
    assert f"{tmp_path}: 12.3 kB held" in findings()["cache"]["value"]


def test_who_moves_the_bytes_of_a_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert findings()["uaii pull"] == {"name": "uaii pull", "state": "ok", "fix": "",
                                       "value": "by uaii's own requests (no huggingface_hub >=1.31,<3 here)"}
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(__version__="1.31.4"))
    assert findings()["uaii pull"]["value"] == "by huggingface_hub 1.31.4"


def test_a_cache_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UAII_CACHE", str(tmp_path / "file" / "cache"))
    found = findings()
    assert (found["cache"]["state"], "UAII_CACHE" in found["cache"]["fix"]) == ("problem", True)


def test_instructions_are_words_of_cpuinfo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_text", lambda path: "flags\t\t: fpu avx avx2 avx512_vnni sse\n" if "cpuinfo" in path else "")
    monkeypatch.setattr(doctor, "available_bytes", lambda: (0, 0))
    found = {f.name: f for f in doctor.machine()}
    assert found["instructions"].value == "avx avx2 avx512_vnni"
    assert (found["memory"].value, found["memory"].state) == ("unknown", "note")
