"""What is installed is what is in the repository: every module, every data file, nothing else."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("backends", "cli", "frontend", "ir", "passes")
LEFT_OUT = {".git", ".venv", "build", "dist", ".mypy_cache", ".ruff_cache", ".pytest_cache", "__pycache__"}


def sources() -> list[str]:
    """Files of the repository: git's list, or all files where this is an unpacked archive."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return [f for f in listed.split("\0") if f and ((ROOT / f).is_file() or (ROOT / f).is_symlink())]
    return [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file() and not LEFT_OUT & set(p.relative_to(ROOT).parts)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the repository's files, so that nothing left over from another build can be in it."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    for name in sources():
        if name.startswith(("tests/", "docs/")):
            continue
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    build = f"import setuptools.build_meta as b; b.build_wheel({str(out)!r})"
    done = subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = out.glob("uaii-*-py3-none-any.whl")
    return made


@pytest.fixture(scope="module")
def inside(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as z:
        return {n for n in z.namelist() if not n.split("/")[0].endswith(".dist-info")}


def test_the_wheel_has_the_repositorys_modules(inside: set[str]) -> None:
    want = {f if f.startswith("uaii/") else f"uaii/{f}" for f in sources()
            if f.endswith(".py") and f.split("/")[0] in (*ROOMS, "uaii")}
    assert len(want) > 80
    assert {n for n in inside if n.endswith(".py")} == want


def test_the_wheel_has_the_data_that_modules_read(inside: set[str]) -> None:
    want = {f if f.startswith("uaii/") else f"uaii/{f}" for f in sources()
            if f.split("/")[0] in (*ROOMS, "uaii") and not f.endswith(".py") and not (ROOT / f).is_symlink()}
    assert "uaii/py.typed" in want and any(f.endswith(".json") for f in want)
    assert {n for n in inside if not n.endswith(".py")} == want


def test_the_wheel_names_its_commands_and_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as z:
        names = {n.partition(".dist-info/")[2]: n for n in z.namelist() if ".dist-info/" in n}
        commands = z.read(names["entry_points.txt"]).decode()
        assert "licenses/LICENSE" in names
        requires = [line for line in z.read(names["METADATA"]).decode().splitlines() if line.startswith("Requires-Dist")]
    for command in ("uaii =", "uaii-compile =", "uaii-run =", "uaii-explain ="):
        assert command in commands
    assert not any("torch" in r and "extra" not in r for r in requires)


def test_every_installed_module_can_be_imported(wheel: Path, tmp_path: Path) -> None:
    """From the unpacked wheel, away from the repository: a missing file or an import by another path would show."""
    with zipfile.ZipFile(wheel) as z:
        z.extractall(tmp_path)
    script = ("import importlib, pkgutil, uaii\n"
              f"assert uaii.__file__.startswith({str(tmp_path)!r}), uaii.__file__\n"
              "names = [m.name for m in pkgutil.walk_packages(uaii.__path__, 'uaii.')]\n"
              "[importlib.import_module(n) for n in names]\n"
              "import sys; assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
              "print(len(names))")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 80


def test_links_may_be_missing(tmp_path: Path) -> None:
    """Where a checkout was unpacked without symbolic links, uaii/__init__.py finds the rooms beside it."""
    for room in (*ROOMS, "uaii"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=lambda d, names: {
            n for n in names if n in LEFT_OUT or Path(d, n).is_symlink()})
    assert not (tmp_path / "uaii" / "ir").exists()
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONPATH": str(tmp_path)}
    script = "import uaii.ir.parse as p, uaii.passes.base; print(p.__file__)"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "ir" / "parse.py")
