"""The tokenizer of a checkpoint or an artifact, whichever kind of source it came in."""
from __future__ import annotations

import re
from pathlib import Path

from uaii.frontend.checkpoint import Checkpoint, TokenizerFiles
from uaii.frontend.hf import HfFolder
from uaii.frontend.open import open_checkpoint
from uaii.frontend.tokenizer import stops
from uaii.frontend.tokenizer.folder import from_artifact, from_folder
from uaii.frontend.tokenizer.gguf import from_gguf
from uaii.frontend.tokenizer.text import Tokenizer
from uaii.ir.diag import Diagnostic, Unsupported

PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


def load_tokenizer(checkpoint: Checkpoint) -> TokenizerFiles:
    """The checkpoint's tokenizer. Raises Malformed or Unsupported K5xx."""
    if isinstance(checkpoint, HfFolder):
        return from_folder(checkpoint.path, checkpoint.metadata, checkpoint.generation)
    return from_gguf(checkpoint.metadata, checkpoint.config_file)


def tokenizer_of(checkpoint: Checkpoint) -> tuple[TokenizerFiles | None, list[str]]:
    """The checkpoint's tokenizer and its notes; None when it has none that uaii reads, since the model still runs on ids.

    Raises Malformed K5xx when there is one and it is broken, Unsupported K502 or K504 for a GGUF's that llama.cpp refuses too.
    """
    try:
        made = load_tokenizer(checkpoint)
    except Diagnostic as err:
        if err.code not in ("K501", "K506") and (checkpoint.format == "gguf" or not isinstance(err, Unsupported)):
            raise
        return None, [f"no tokenizer: {err.says}"]
    for name in [name for name in made.templates if not PLAIN_NAME.fullmatch(name)]:
        made.notes.append(f"WARNING: the chat template named {name!r} is left out: that is no name for a file")
        del made.templates[name]
    return made, made.notes


def stop_ids_of(checkpoint: Checkpoint, vocab_size: int, notes: list[str]) -> tuple[int, ...]:
    """What ends generation when there is no tokenizer to ask: the folder's configuration alone."""
    if not isinstance(checkpoint, HfFolder):
        return ()
    return stops.stop_ids(checkpoint.metadata, checkpoint.generation, None, vocab_size, notes)


def open_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a folder (its tokenizer files are enough), a .gguf file, or an artifact."""
    if (path / "uaii.json").is_file():
        return Tokenizer(from_artifact(path))
    if path.is_dir() and not (path / "config.json").exists() and not any(path.glob("*.gguf")):
        return Tokenizer(from_folder(path, {}, None))
    return Tokenizer(load_tokenizer(open_checkpoint(path, inspect=True)))
