"""uaii compiles decoder-only LLM checkpoints to ONNX artifacts that stock onnxruntime runs."""
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where a checkout was unpacked without symbolic links, the rooms lie beside this folder.
_root = Path(__file__).parent.parent
if not (Path(__file__).parent / "ir").exists() and (_root / "ir").is_dir():
    __path__.append(str(_root))

if TYPE_CHECKING:
    from uaii.compiler import Artifact
    from uaii.compiler import compile_model as compile
    from uaii.inspection import inspect
    from uaii.ir.diag import Diagnostic, Internal, Malformed, Unsupported, Usage
    from uaii.model import Model, load
    from uaii.verification import verify

_LAZY = {"Artifact": "compiler", "compile": "compiler", "inspect": "inspection", "Diagnostic": "ir.diag",
         "Internal": "ir.diag", "Malformed": "ir.diag", "Unsupported": "ir.diag", "Usage": "ir.diag", "Model": "model",
         "load": "model", "verify": "verification"}
__all__ = ["Artifact", "Diagnostic", "Internal", "Malformed", "Model", "Unsupported", "Usage", "__version__", "compile",
           "inspect", "load", "verify"]


def __getattr__(name: str) -> Any:
    """Loads a public name on first use: importing uaii costs nothing."""
    if name not in _LAZY:
        raise AttributeError(f"module 'uaii' has no attribute {name!r}")
    from importlib import import_module
    return getattr(import_module(f"uaii.{_LAZY[name]}"), "compile_model" if name == "compile" else name)
