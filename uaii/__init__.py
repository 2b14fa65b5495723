"""uaii compiles decoder-only LLM checkpoints to ONNX artifacts that stock onnxruntime runs."""
from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"

# Where a checkout was unpacked without symbolic links, the rooms lie beside this folder.
_root = Path(__file__).parent.parent
if not (Path(__file__).parent / "ir").exists() and (_root / "ir").is_dir():
    __path__.append(str(_root))
