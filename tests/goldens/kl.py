"""How far the packed artifact and llama.cpp are from exact math on a file: `python tests/goldens/kl.py FILE.gguf [TEXT]`;
or how far those of --weights int8 and int4 are on a folder of floats: `python tests/goldens/kl.py FOLDER [TEXT]`.

Run from the repository root with llama-cpp-python 0.3.36 installed. Exact is the artifact of --weights f32, which computes
on the values that the file's blocks mean. Over teacher-forced positions of TEXT (docs/architecture.md unless given) it
prints mean KL(exact || other) in nats and how often both have the same best token. llama.cpp runs under oracle settings,
and once more as it comes by default (F16 cache).
"""
from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]

import numpy as np  # noqa: E402
from llamacpp import load  # noqa: E402

from uaii.backends.ort.session import Session  # noqa: E402
from uaii.compiler import compile_model  # noqa: E402
from uaii.frontend.tokenizer.source import open_tokenizer  # noqa: E402

CHUNK, CHUNKS = 128, 4
THREADS = 2
TEXT = Path(__file__).parents[2] / "docs" / "architecture.md"
Chunks = list[list[int]]


def artifact(file: Path, weights: str, chunks: Chunks) -> list[np.ndarray]:
    """Logits [S,V] of each chunk; the artifact is removed again."""
    with tempfile.TemporaryDirectory() as temp:
        made = compile_model(file, Path(temp) / "out", weights=weights)
        stored, written = file.stat().st_size if file.is_file() else made.summary["bytes_in"], made.summary["bytes_out"]
        held = ", ".join(f"{made.summary[k]} {k}" for k in ("packed", "quantised", "dequantised", "float"))
        print(f"{weights}: {written} bytes of weights, {written / stored:.3f} of the source; {held} tensors", flush=True)
        model = Session.open(Path(temp) / "out", threads=THREADS)
        return [model.logits(ids) for ids in chunks]


def llama(file: Path, chunks: Chunks, **settings: Any) -> list[np.ndarray]:
    """llama.cpp's logits [S,V] of each chunk."""
    model, out = load(file, n_threads=THREADS, n_threads_batch=THREADS, **settings), []
    for ids in chunks:
        model.reset()
        model.eval(ids)
        out.append(np.array(model.scores[:len(ids)]))
    model.close()
    return out


def log_softmax(x: np.ndarray) -> np.ndarray:
    """Of each row, in f64."""
    x = x.astype(np.float64) - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def distance(exact: list[np.ndarray], other: list[np.ndarray]) -> tuple[float, float]:
    """Mean KL(exact || other) in nats, and the share of positions with the same best token."""
    kl, same = [], []
    for a, b in zip(exact, other, strict=True):
        p, q = log_softmax(a), log_softmax(b)
        kl += (np.exp(p) * (p - q)).sum(-1).tolist()
        same += (a.argmax(-1) == b.argmax(-1)).tolist()
    return float(np.mean(kl)), float(np.mean(same))


def main(file: Path, text: Path) -> None:
    ids = open_tokenizer(file).encode(text.read_text("utf-8"))[:CHUNK * CHUNKS]
    chunks = [ids[i:i + CHUNK] for i in range(0, len(ids), CHUNK)]
    exact = artifact(file, "f32", chunks)
    if file.is_dir():
        others = {weights: artifact(file, weights, chunks) for weights in ("int8", "int4")}
    else:
        others = {"packed": artifact(file, "auto", chunks), "llama.cpp": llama(file, chunks),
                  "llama.cpp, F16 cache": llama(file, chunks, type_k=1, type_v=1)}
    print(f"{file.name}: {len(ids)} positions of {text.name}")
    for name, logits in others.items():
        kl, same = distance(exact, logits)
        print(f"  {name:22} mean KL {kl:.5f}, same best token {same:.2%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else TEXT)
