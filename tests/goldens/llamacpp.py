"""Makes tests/goldens/llamacpp/FAMILY.json with llama.cpp: `python tests/goldens/llamacpp.py [--check] [FAMILY ...]`.

With --check nothing is written: each golden is made again from its seed, and the exit code is 1 when one is not reproduced.
Run from the repository root with llama-cpp-python 0.3.36 installed. Everything is pinned: context, F32 cache, no flash attention,
YaRN settings from the file. A file whose greedy tokens llama.cpp's own noise could change is made again from another seed.
"""
from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]

import llama_cpp  # noqa: E402
import llamacpp_files  # noqa: E402
import llamacpp_golden  # noqa: E402
import numpy as np  # noqa: E402
from llamacpp_files import File  # noqa: E402

CONTEXT = 256
SEEDS = 40
NOISE = 2e-4  # of the range: what another CPU's order of additions may change, llama.cpp's GELU table included


def load(path: Path, **settings: Any) -> llama_cpp.Llama:
    """The model under oracle settings."""
    pinned = {"n_ctx": CONTEXT, "n_batch": CONTEXT, "n_ubatch": CONTEXT, "logits_all": True, "flash_attn": False, "type_k": 0,
              "type_v": 0, "n_gpu_layers": 0, "n_threads": 1, "n_threads_batch": 1, "yarn_ext_factor": -1.0,
              "yarn_attn_factor": -1.0, "yarn_beta_fast": -1.0, "yarn_beta_slow": -1.0, "verbose": False}
    return llama_cpp.Llama(str(path), **pinned | settings)


def run(path: Path, prompt: Sequence[int]) -> tuple[np.ndarray, list[int]]:
    """Logits [S+G-1,V] of the prompt and of its greedy continuation, and the continuation's G tokens."""
    model, tokens = load(path), list[int]()
    model.eval(list(prompt))
    for _ in range(llamacpp_golden.GREEDY):
        tokens.append(int(np.argmax(model.scores[model.n_tokens - 1])))
        model.eval(tokens[-1:])
    rows = np.array(model.scores[:model.n_tokens - 1], np.float64)
    model.close()
    return rows, tokens


def entry(file: File) -> dict[str, Any]:
    """The golden of a file, from the first seed at which no token is a near tie."""
    for seed in range(SEEDS):
        seeded = file.seeded(seed)
        with tempfile.TemporaryDirectory() as temp:
            rows, tokens = run(seeded.write(Path(temp)), seeded.prompt())
        if llamacpp_golden.decided(rows[len(seeded.prompt()) - 1:]):
            return llamacpp_golden.made(seeded, rows, tokens)
    raise ValueError(f"{file.twin.arch}/{file.name}: every one of {SEEDS} seeds has a near tie")


def fault(family: str, file: File) -> str | None:
    """What of a stored golden llama.cpp does not give again, or None."""
    try:
        seeded, stored = llamacpp_golden.golden(family, file)
    except AssertionError as error:
        return str(error)
    with tempfile.TemporaryDirectory() as temp:
        rows, tokens = run(seeded.write(Path(temp)), seeded.prompt())
    off = llamacpp_golden.difference(rows, len(seeded.prompt()), stored)
    if tokens != stored["tokens"] or off > NOISE:
        return f"{family}/{file.name}: tokens {'equal' if tokens == stored['tokens'] else 'differ'}, logits off by {off:.1e}"
    return None


def check(names: list[str]) -> int:
    """How many goldens are not reproduced; each is printed."""
    chosen = [(name, f) for name, files in llamacpp_files.files().items() if not names or name in names for f in files]
    faults = [said for name, f in chosen if (said := fault(name, f)) is not None]
    print("\n".join([*faults, f"{len(chosen) - len(faults)} of {len(chosen)} goldens reproduced"]))
    return len(faults)


def main(names: list[str]) -> None:
    for name, files in llamacpp_files.files().items():
        if not names or name in names:
            made = [f"{json.dumps(f.name)}:{json.dumps(entry(f), separators=(',', ':'))}" for f in files]
            path = llamacpp_golden.path(name)
            path.parent.mkdir(exist_ok=True)
            path.write_text("{" + ",\n".join(made) + "}\n")
            print(f"{name}: {len(files)} files, {path.stat().st_size} bytes", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        sys.exit(1 if check(sys.argv[2:]) else 0)
    main(sys.argv[1:])
