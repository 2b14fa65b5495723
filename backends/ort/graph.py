"""What the runner needs to know of model.onnx: loading it, and checking its inputs and outputs against the manifest."""
from __future__ import annotations

import mmap
import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from uaii.backends.ort.cache import Slot
from uaii.backends.ort.manifest import GRAPH, NAME, Manifest
from uaii.ir.diag import Diagnostic, Malformed, Unsupported
from uaii.ir.loc import File

KEEP, LENGTH, START = "num_logits_to_keep", "rope_length", "window_start"
NUMPY: dict[str, np.dtype[Any]] = {"tensor(float)": np.dtype(np.float32), "tensor(float16)": np.dtype(np.float16)}


@dataclass(frozen=True)
class Layout:
    """The graph's shape for the runner: cached tensors, logits' type, whether it can return only the last ones, whether it
    is told the length of a text that runs in parts, and at which key the caches of layers with a window begin."""

    slots: tuple[Slot, ...]
    logits: np.dtype[Any]
    keeps: bool
    told: bool
    starts: bool


def load(folder: Path, files: dict[str, int], options: onnxruntime.SessionOptions,
         providers: list[str]) -> onnxruntime.InferenceSession:
    """An onnxruntime session over the folder's graph; external weights are memory-mapped.

    onnxruntime demands weights beside the graph's real place. A download that links only its large files breaks that,
    so such files are mapped and handed over here. Raises Malformed S604 and Unsupported S605.
    """
    graph = folder / GRAPH
    home = Path(os.path.realpath(graph)).parent
    with ExitStack() as stack:
        away = [name for name, size in files.items()
                if size and name != GRAPH and name.startswith(GRAPH)
                and Path(os.path.realpath(folder / name)).parent != home]
        try:
            maps = [stack.enter_context(_mapped(folder / name)) for name in away]
            if maps:
                options.add_external_initializers_from_files_in_memory(away, maps, [len(m) for m in maps])
            return onnxruntime.InferenceSession(str(graph), options, providers=providers)
        except Exception as error:  # onnxruntime's errors share no base class below Exception
            raise _refused(graph, error) from None


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _refused(graph: Path, error: Exception) -> Diagnostic:
    says = " ".join(str(error).split())
    if type(error).__name__ == "NotImplemented":
        return Unsupported("S605", "onnxruntime has no kernel for a node of the artifact", File(str(graph)),
                           notes=[says], hint="compile the checkpoint again for the target that you run on")
    if isinstance(error, MemoryError) or out_of_memory(says):
        return Unsupported("S617", "not enough memory to load the artifact", File(str(graph)), notes=[says],
                           hint="use smaller weights or a machine with more memory")
    return Malformed("S604", "onnxruntime cannot load the artifact's graph", File(str(graph)), notes=[says],
                     hint="compile the checkpoint again, or copy the whole folder")


def out_of_memory(says: str) -> bool:
    """Whether a message of onnxruntime means that memory ran out."""
    return any(sign in says for sign in ("bad_alloc", "Failed to allocate memory", "out of memory"))


def layout(session: onnxruntime.InferenceSession, manifest: Manifest) -> Layout:
    """The graph's inputs and outputs, checked against the manifest. Raises Malformed S607, Unsupported S605."""
    inputs = {node.name: node for node in session.get_inputs()}
    outputs = {node.name: node for node in session.get_outputs()}
    _agree("inputs", {"input_ids", "attention_mask"} - set(inputs), set())
    pasts = {name: name.replace("past_key_values.", "present.", 1) for name in inputs if "past_key_values." in name}
    _agree("outputs", {"logits", *pasts.values()} - set(outputs), set(outputs) - {"logits", *pasts.values()})
    _agree("inputs", set(), set(inputs) - {"input_ids", "attention_mask", *pasts})
    slots = tuple(_slot(inputs[past], present, manifest) for past, present in pasts.items())
    if manifest.kv_latent:
        slots = _latent(slots, manifest)
    layers = len({slot.past.split(".")[1] for slot in slots})
    if layers != manifest.layers:
        raise _differs("layers", manifest.layers, layers)
    width = outputs["logits"].shape[-1]
    if isinstance(width, int) and width != manifest.vocab_size:
        raise _differs("vocab_size", manifest.vocab_size, width)
    optional = {node.name for node in session.get_overridable_initializers()}
    if (manifest.rope_switch is not None) != (LENGTH in optional):
        raise _differs("rope_switch", manifest.rope_switch, f"{'an' if LENGTH in optional else 'no'} input {LENGTH}")
    if any(manifest.kv_windows) != (START in optional):
        raise _differs("kv_windows", list(manifest.kv_windows), f"{'an' if START in optional else 'no'} input {START}")
    return Layout(slots, _numpy(outputs["logits"]), KEEP in optional, LENGTH in optional, START in optional)


def _agree(side: str, missing: set[str], unknown: set[str]) -> None:
    faults = [f"missing: {name}" for name in sorted(missing)] + [f"unknown: {name}" for name in sorted(unknown)]
    if faults:
        raise Malformed("S607", f"the {side} of {GRAPH} are not those of a uaii artifact", File(GRAPH), notes=faults,
                        hint="compile the checkpoint again")


def _differs(key: str, said: object, found: object) -> Malformed:
    return Malformed("S607", f"{NAME} says {key} is {said}, {GRAPH} has {found}", File(NAME, key),
                     hint="the two files belong to different artifacts: compile the checkpoint again")


def _slot(past: Any, present: str, manifest: Manifest) -> Slot:
    heads, width = past.shape[1], past.shape[3]
    if not (isinstance(heads, int) and isinstance(width, int)):
        raise Malformed("S607", f"{past.name} has no fixed number of heads and width: {past.shape}", File(GRAPH))
    for key, said, found in (("kv_heads", manifest.kv_heads, heads), ("head_dim", manifest.head_dim, width)):
        if said is not None and said != found:
            raise _differs(key, said, f"{found} at {past.name}")
    window = dict(enumerate(manifest.kv_windows)).get(int(past.name.split(".")[1]), 0)
    return Slot(past.name, present, _numpy(past), heads, width, window=window)


def _latent(slots: tuple[Slot, ...], manifest: Manifest) -> tuple[Slot, ...]:
    """One slot for the key and the value of each layer."""
    by_name = {slot.past: slot for slot in slots}
    values = {name.removesuffix(".key") + ".value" for name in by_name if name.endswith(".key")}
    if not manifest.kv_in_place or values != {name for name in by_name if not name.endswith(".key")}:
        raise _differs("kv_latent", True, "other inputs than a key and a value of each layer that are written in place")
    pairs = ((slot, by_name[slot.past.removesuffix(".key") + ".value"]) for slot in slots if slot.past.endswith(".key"))
    merged = [(replace(key, also=(value.past, value.present)), value) for key, value in pairs]
    if odd := [v.past for k, v in merged if (v.dtype, v.heads, v.width) != (k.dtype, k.heads, k.width)]:
        raise _differs("kv_latent", True, f"another shape at {odd[0]} than at its key")
    return tuple(slot for slot, _ in merged)


def _numpy(node: Any) -> np.dtype[Any]:
    if node.type not in NUMPY:
        raise Unsupported("S605", f"{node.name} is of type {node.type}; the runner handles {', '.join(NUMPY)}",
                          File(GRAPH), hint="compile the checkpoint again with f32 or f16")
    return NUMPY[node.type]
