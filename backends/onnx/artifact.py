"""The artifact folder: made beside its target under another name, and put in place whole."""
from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from uaii.ir.diag import Usage
from uaii.ir.loc import File

MANIFEST = "uaii.json"
FORMAT = 1


@contextmanager
def folder(out: Path) -> Iterator[Path]:
    """A temporary folder beside `out` that becomes `out` when the block ends well, and vanishes when it does not.

    An older artifact at `out` is replaced; anything else there is refused (Usage O701), as is a place that cannot be
    written (Usage O702).
    """
    out = Path(os.path.abspath(out))
    _refuse_foreign(out)
    _sweep_abandoned(out)
    try:
        temp = Path(tempfile.mkdtemp(prefix=_prefix(out, os.getpid()), dir=out.parent))
    except OSError as err:
        raise Usage("O702", f"cannot write into {out.parent}: {err.strerror}", File(str(out.parent)),
                    hint="choose another place with -o") from None
    try:
        temp.chmod(0o755)
        yield temp
        _swap(temp, out)
    except OSError as err:
        raise Usage("O703", f"cannot write the artifact: {err.strerror or err}", File(str(err.filename or temp)),
                    hint="free space, or choose another place with -o; what was there before is unchanged") from None
    finally:
        shutil.rmtree(temp, ignore_errors=True)


def _prefix(out: Path, pid: int) -> str:
    return f".{out.name}.uaii-{pid}-"


def _refuse_foreign(out: Path) -> None:
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise Usage("O701", f"{out} exists and is not a folder", File(str(out)), hint="choose another place with -o")
    if not out.exists():
        return
    names = {p.relative_to(out).as_posix() for p in out.rglob("*")}
    known: set[str] = set()
    if MANIFEST in names:
        with suppress(ValueError, OSError, AttributeError, TypeError):
            listed = json.loads((out / MANIFEST).read_text("utf-8")).get("files", {})
            known = {MANIFEST, *listed, *(parent.as_posix() for name in listed for parent in PurePosixPath(name).parents)}
    if strange := sorted(names - known):
        raise Usage("O701", f"{out} holds files that are not an artifact's: {', '.join(strange[:5])}", File(str(out)),
                    why="compiling replaces the folder whole", hint="move them away, or choose another place with -o")


def _sweep_abandoned(out: Path) -> None:
    """Removes what killed compiles of the same target left behind."""
    pattern = re.compile(re.escape(f".{out.name}.uaii-") + r"(\d+)-.*")
    for path in out.parent.iterdir() if out.parent.is_dir() else ():
        found = pattern.fullmatch(path.name)
        if found and not _alive(int(found[1])):
            shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _swap(temp: Path, out: Path) -> None:
    """rename() puts a folder in place whole; an old one is moved aside first, since a full folder is not replaced."""
    for path in (*temp.rglob("*"), temp):
        _sync(path)
    old = Path(tempfile.mkdtemp(prefix=_prefix(out, os.getpid()), dir=out.parent))
    try:
        if out.exists():
            out.rename(old / "old")
        temp.rename(out)
        _sync(out.parent)
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def finish(temp: Path, manifest: dict[str, Any], sums: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Writes uaii.json last: every file with its size and sha256, and `complete`. `sums` are those sha256 that are known."""
    files = {}
    for path in sorted(p for p in temp.rglob("*") if p.is_file()):
        name = path.relative_to(temp).as_posix()
        files[name] = {"bytes": path.stat().st_size, "sha256": (sums or {}).get(name) or _sha256(path)}
    whole = {"format": FORMAT, **manifest, "files": files, "complete": True}
    (temp / MANIFEST).write_text(json.dumps(whole, ensure_ascii=False, indent=1), "utf-8", errors="backslashreplace")
    return whole


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def genai_config(hparams: dict[str, Any], heads: int, width: int, stop_ids: tuple[int, ...], bos: int | None,
                 pad: int | None, in_place: bool) -> dict[str, Any]:
    """What onnxruntime-genai needs to run the same folder (its decoder-only schema; unknown keys are errors there)."""
    stops = list(stop_ids) or [0]
    return {
        "model": {
            "type": "decoder", "vocab_size": hparams["vocab_size"], "context_length": hparams["context_length"],
            "bos_token_id": bos if bos is not None else stops[0], "eos_token_id": stops,
            "pad_token_id": pad if pad is not None else stops[0],
            "decoder": {
                "filename": "model.onnx", "head_size": hparams["head_dim"], "hidden_size": width,
                "num_attention_heads": heads, "num_hidden_layers": hparams["layers"],
                "num_key_value_heads": hparams["kv_heads"],
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask",
                           "past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"},
                "outputs": {"logits": "logits", "present_key_names": "present.%d.key",
                            "present_value_names": "present.%d.value"},
            },
        },
        "search": {"do_sample": False, "max_length": hparams["context_length"], "min_length": 0, "num_beams": 1,
                   "num_return_sequences": 1, "repetition_penalty": 1.0, "temperature": 1.0, "top_k": 50, "top_p": 1.0,
                   "early_stopping": True, "past_present_share_buffer": in_place},
    }
