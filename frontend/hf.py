"""A Hugging Face folder as a checkpoint: config.json and safetensors. No code of the folder is run."""
from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from uaii.frontend import blob
from uaii.frontend.checkpoint import StoredTensor
from uaii.frontend.hf_blockers import config_blockers, read_method, tensor_blockers
from uaii.frontend.hf_weights import LOOKED_FOR, Weights, find_weights
from uaii.frontend.jsonfile import read_object
from uaii.ir.diag import Diagnostic, Malformed, Unsupported, Usage
from uaii.ir.loc import File


class HfFolder:
    """Metadata and tensors of a model folder; `weights=False` reads the config only.

    Raises Usage U003 (not a folder), Malformed H30x to H32x, Unsupported H309, H321, H330, H331. With `inspect`, what
    is wrong with the weights is listed by blocked() instead; a config that cannot be read is raised even so.
    """

    format: Literal["hf", "gguf"] = "hf"

    def __init__(self, path: Path | str, *, weights: bool = True, inspect: bool = False) -> None:
        self.path = Path(path)
        self.config_file = "config.json"
        self._config = self.path / self.config_file
        _refuse_not_a_model(self.path)
        self.metadata: Mapping[str, Any] = read_object("H310", self._config)
        self._blocked = config_blockers(str(self._config), self.metadata)
        found = Weights()
        try:
            found = find_weights(self.path, fp8=read_method(self.metadata) == "fp8") if weights else found
        except Diagnostic as err:
            self._blocked.append(err)
        self.tensors: Mapping[str, StoredTensor] = {k: t for s in found.shards for k, t in s.tensors.items()}
        self.notes = found.notes
        self._index = found.index
        self._shards = found.shards
        self._blobs = {s.blob.path: s.blob for s in found.shards}
        # The config's own word names the method exactly; the names tell it apart only roughly.
        declared = config_blockers(str(self._config), self.metadata)
        self._blocked += [] if declared else tensor_blockers(self.tensors, read_method(self.metadata))
        self._blocked += [err for s in found.shards for err in s.blocked]
        if self._blocked and not inspect:
            raise self._blocked[0]

    @cached_property
    def generation(self) -> dict[str, Any]:
        """generation_config.json, empty when there is none; raises Malformed H312."""
        path = self.path / "generation_config.json"
        return read_object("H312", path) if path.exists() else {}

    def read(self, name: str) -> Any:
        """The stored values, see Checkpoint.read; raises the refusal of an element type that is not loaded."""
        tensor = self.tensors[name]
        return blob.read(tensor, self._blobs[tensor.file], None)

    def blocked(self) -> list[Diagnostic]:
        """What bars loading; empty for a folder opened without `inspect`."""
        return list(self._blocked)

    def fingerprint(self) -> dict[str, Any]:
        """Per file its name, size in bytes and the sha256 of its header (of the whole file for JSON)."""
        texts = [p for p in (self._config, self._index) if p]
        files = [{"name": p.name, "size": p.stat().st_size, "header_sha256": hashlib.sha256(p.read_bytes()).hexdigest()}
                 for p in texts]
        return {"format": self.format, "files": files + [s.blob.fingerprint(s.data) for s in self._shards]}


def _refuse_not_a_model(folder: Path) -> None:
    if not folder.is_dir():
        raise Usage("U003", f"{folder.name} is not a folder", File(str(folder)), hint="give the folder of the model")
    adapter = folder / "adapter_config.json"
    if adapter.exists():
        raise Unsupported("H331", f"{folder} is a LoRA adapter: give the merged model", File(str(adapter)),
                          why="an adapter only changes a base model, which uaii does not fetch or merge",
                          hint="peft: model.merge_and_unload().save_pretrained(OUT); if the weights here are merged "
                               "already, remove adapter_config.json")
    if not (folder / "config.json").is_file():
        hint = "download the whole repository: uaii pull org/name"
        if (folder / "params.json").exists():
            hint = "params.json is of the publisher's own format: take the Hugging Face repository"
        if (folder / "snapshots").is_dir():
            hint = "this is a folder of the Hugging Face cache: give one of the folders under snapshots"
        raise Malformed("H310", f"no config.json in {folder}", File(str(folder)), why=f"{LOOKED_FOR}, and config.json",
                        hint=hint)
