"""Which safetensors files of a folder are the model: one file, or the shards of an index, and never two copies."""
from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from uaii.frontend.blob import Blob, names_in
from uaii.frontend.jsonfile import kind, read_object, said, shown
from uaii.frontend.safetensors import Shard, read_shard
from uaii.ir.diag import Malformed, Unsupported
from uaii.ir.loc import File

PICKLES = (".bin", ".pt", ".pth", ".ckpt")
TRAINING = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state.*)\.(bin|pt|pth)")
SHARD = re.compile(r".+-(\d+)-of-(\d+)\.safetensors")
LOOKED_FOR = "looked for model.safetensors, model.safetensors.index.json and its shards, or one other *.safetensors"


@dataclass
class Weights:
    """The shards that make up the model, the index that names them if there is one, and what was left aside and why."""

    shards: list[Shard] = field(default_factory=list)
    index: Path | None = None
    notes: list[str] = field(default_factory=list)


def find_weights(folder: Path, *, fp8: bool = False) -> Weights:
    """The weights of a folder, every header read and the index checked against the shards; `fp8` where FP8 tensors are read.

    Raises Malformed H320 (no weights), H322 (two copies, stray files), H323 (missing shard), H324 (index), Unsupported
    H321 (only pickles), and whatever read_shard raises.
    """
    names = names_in(folder)
    files = [n for n in names if n.endswith(".safetensors")]
    indexes = [n for n in names if n.endswith(".safetensors.index.json")]
    pickles = [n for n in names if n.endswith(PICKLES) and not TRAINING.fullmatch(n)]
    if not files and not indexes:
        _refuse_nothing(folder, pickles)
    # Mistral and Meta publish a second copy in their own naming beside the Hugging Face one.
    own = [n for n in files if not n.startswith("consolidated")]
    own_indexes = [n for n in indexes if not n.startswith("consolidated")]
    notes = [f"{n} ignored: a pickle, never opened" for n in pickles]
    if own or own_indexes:
        notes += [f"{n} ignored: the publisher's own copy, beside the Hugging Face one" for n in files if n not in own]
        files, indexes = own, own_indexes
    if len(indexes) > 1:
        raise _two(folder, indexes[0], indexes[1])
    if not indexes:
        return Weights([read_shard(Blob(folder / _alone(folder, files)), fp8=fp8)], None, notes)
    path = folder / indexes[0]
    placed = _index(path)
    shards = list(dict.fromkeys(placed.values()))
    strays = [n for n in files if n not in shards]
    if strays:
        raise _two(folder, indexes[0], strays[0])
    _present(folder, path, placed)
    found = [read_shard(Blob(folder / name), fp8=fp8) for name in shards]
    _agree(path, placed, dict(zip(shards, found, strict=True)))
    return Weights(found, path, notes)


def _refuse_nothing(folder: Path, pickles: list[str]) -> None:
    if pickles:
        raise Unsupported("H321", "need *.safetensors (convert with transformers / safetensors.torch.save_file)",
                          File(str(folder / pickles[0])), why="opening a pickle can run any code; uaii never opens one",
                          hint="AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(OUT) writes safetensors")
    raise Malformed("H320", f"no weights in {folder}", File(str(folder)), why=LOOKED_FOR,
                    hint="download the whole repository: uaii pull org/name")


def _alone(folder: Path, files: list[str]) -> str:
    if files[1:]:
        if all(SHARD.fullmatch(n) for n in files):
            raise _lonely(folder, files)
        raise _two(folder, files[0], files[1])
    part = SHARD.fullmatch(files[0])
    if part and int(part[2]) > 1:
        raise _lonely(folder, files)
    return files[0]


def _lonely(folder: Path, files: list[str]) -> Malformed:
    return Malformed("H324", f"{files[0]} is a shard and there is no model.safetensors.index.json",
                     File(str(folder / files[0])), why="only the index says which shards a model has",
                     hint="download model.safetensors.index.json too")


def _two(folder: Path, first: str, second: str) -> Malformed:
    return Malformed("H322", f"two copies of the weights, or files of another model: {first} and {second}",
                     File(str(folder / second)), why="uaii does not choose between weights",
                     hint=f"move away the one that is not meant; {first} does not name {second}")


def _index(path: Path) -> dict[str, str]:
    """The weight_map: tensor name to a file name inside the folder."""
    placed = read_object("H324", path).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        fault = "is empty" if placed == {} else "is absent" if placed is None else f"is {kind(placed)}"
        raise Malformed("H324", f"{path.name}: weight_map {fault}", File(str(path), "weight_map"),
                        hint="download the index again")
    for tensor, name in placed.items():
        at = File(str(path), f"weight_map.{shown(tensor)}")
        if not (isinstance(name, str) and name.endswith(".safetensors") and name.isprintable() and len(name) < 200):
            raise Malformed("H324", f"{path.name}: {shown(tensor)} is mapped to {said(name)}, not a *.safetensors file",
                            at, hint="download the index again")
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts or "\\" in name or ":" in parts[0]:
            raise Malformed("H324", f"{path.name}: {shown(tensor)} is mapped to {name}, outside the folder", at,
                            why="an index may only name files of its own folder",
                            hint="the repository is not to be trusted; do not use it")
    return placed


def _present(folder: Path, index: Path, placed: dict[str, str]) -> None:
    counts = Counter(placed.values())
    missing = [name for name in counts if not (folder / name).is_file()]
    if not missing:
        return
    lost = [f"missing shard {name}: {counts[name]} tensors" + (
        f" (a link to {(folder / name).readlink()}, which is not there)" if (folder / name).is_symlink() else "")
        for name in missing]
    more = f" and {len(missing) - 1} more of {len(counts)} shards" if missing[1:] else ""
    raise Malformed("H323", f"missing shard {missing[0]}, which holds {counts[missing[0]]} tensors{more}",
                    File(str(index), "weight_map"), why="tensors that are not there have no values",
                    hint="download it again: uaii pull org/name",
                    notes=lost[1:9] if missing[1:] else [x for x in lost if "link" in x])


def _agree(index: Path, placed: dict[str, str], shards: dict[str, Shard]) -> None:
    for tensor, name in placed.items():
        if tensor not in shards[name].tensors:
            other = next((n for n, s in shards.items() if tensor in s.tensors), None)
            says = f"{index.name} maps {shown(tensor)} to {name}, which does not hold it"
            raise Malformed("H324", says + (f"; {other} does" if other else ""),
                            File(str(index), f"weight_map.{shown(tensor)}"),
                            hint="download the index and the shards again, from one revision")
    for name, shard in shards.items():
        for tensor in shard.tensors:
            if placed.get(tensor) != name:
                fault = f"the index maps it to {placed[tensor]}" if tensor in placed else "it is not in the index"
                raise Malformed("H324", f"{name} holds {tensor} and {fault}", File(str(index), "weight_map"),
                                why="a tensor nobody reads can change the model's meaning without a trace",
                                hint="download the index and the shards again, from one revision")
