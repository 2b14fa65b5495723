"""Compile a checkpoint once, then ask it something: python examples/ask.py MODEL "question"."""
from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import uaii


def main(model: str, question: str) -> None:
    artifact = Path(tempfile.mkdtemp()) / "artifact"
    try:
        uaii.compile(model, artifact)
    except uaii.Diagnostic as error:  # code, place, reason and what to do
        sys.exit(str(error))
    loaded = uaii.load(artifact)
    print(loaded.chat([{"role": "system", "content": "You are a helpful AI assistant."}, {"role": "user", "content": question}],
                      max_new_tokens=64))


if __name__ == "__main__":
    main(*sys.argv[1:])
