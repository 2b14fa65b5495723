"""The tokenizer of a checkpoint, whichever kind of source it came in."""
from __future__ import annotations

from uaii.frontend.checkpoint import Checkpoint, TokenizerFiles
from uaii.frontend.hf import HfFolder
from uaii.ir.diag import Diagnostic


def tokenizer_of(checkpoint: Checkpoint) -> tuple[TokenizerFiles | None, list[str]]:
    """The checkpoint's tokenizer, or None with the reason as a note: a model without one still runs on token ids."""
    try:
        return load_tokenizer(checkpoint), []
    except Diagnostic as err:
        return None, [str(err)]


def load_tokenizer(checkpoint: Checkpoint) -> TokenizerFiles:
    """The checkpoint's tokenizer. Raises Malformed or Unsupported K5xx."""
    if isinstance(checkpoint, HfFolder):
        from uaii.frontend.tokenizer.folder import from_folder
        return from_folder(checkpoint.path, checkpoint.metadata, checkpoint.generation)
    from uaii.frontend.tokenizer.gguf import from_gguf
    return from_gguf(checkpoint.metadata, checkpoint.config_file)
