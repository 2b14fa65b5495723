"""What a family is, how one is recognised, and how a checkpoint becomes a graph."""
from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from uaii.frontend import families
from uaii.frontend.blocks import DIMS
from uaii.frontend.build import Build
from uaii.frontend.checkpoint import Checkpoint
from uaii.frontend.config import Config, contradiction
from uaii.frontend.tensors import Where
from uaii.ir import loc as L
from uaii.ir.core import Graph
from uaii.ir.diag import Internal, Malformed, Unsupported
from uaii.ir.stages import Stage

DENIED = {
    "mamba": "state-space", "rwkv": "state-space", "jamba": "state-space", "falconmamba": "state-space",
    "bamba": "state-space", "llava": "vision", "pixtral": "vision", "vl": "vision", "vision": "vision", "mllama": "vision",
    "gemma3forconditional": "vision", "janus": "vision", "paligemma": "vision", "whisper": "audio", "audio": "audio",
    "t5": "encoder-decoder", "bart": "encoder-decoder", "bert": "encoder", "conditionalgeneration": "multimodal",
}


@dataclass(frozen=True)
class Family:
    """A model family, declared: names it goes by, its configuration, where its tensors are, and how its graph reads.

    `hf` are (model_type, class of architectures[0]) pairs, `gguf` values of general.architecture. `dropped` maps regular
    expressions over tensor names to the reason they are left out. A family that `borrows` goes by the class name of another,
    which alone means the other.
    """

    name: str
    hf: tuple[tuple[str, str], ...]
    gguf: tuple[str, ...]
    config: type[Config]
    tensors: Mapping[str, Where]
    model: Callable[[Any, Build], None]
    dropped: Mapping[str, str] = field(default_factory=dict)
    brands: tuple[str, ...] = ()
    borrows: bool = False

    def but(self, **changes: Any) -> Family:
        """A close relative: the same family with some data replaced."""
        return replace(self, **changes)


@dataclass
class Lowered:
    """A checkpoint as a graph of the model stage, with its accounts."""

    graph: Graph
    family: Family
    config: Config
    build: Build
    context_length: int

    @property
    def hparams(self) -> dict[str, Any]:
        """What the run time has to know: context_length, layers, kv_heads, head_dim, vocab_size."""
        cache_inputs = [v for v in self.graph.inputs if v.name.endswith(".key")]
        _, kv, _, d = cache_inputs[0].type.shape
        return {"context_length": self.context_length, "layers": len(cache_inputs),
                "kv_heads": kv, "head_dim": d, "vocab_size": self.graph.outputs[0].type.shape[-1]}

    @property
    def parameters(self) -> int:
        """Stored values: elements of tensors, and of codes and scales the values that they mean."""
        return sum(self.build.values.get(n, t.type.count) for n, t in self.build.ckpt.tensors.items())

    def tensor_account(self) -> list[dict[str, str]]:
        """One row per stored tensor: name, type, and the weight it feeds or the reason it is dropped."""
        return [{"tensor": n, "type": str(t.type), "use": self.build.bound.get(n) or f"dropped: {self.build.drop_reason(n)}"}
                for n, t in self.build.ckpt.tensors.items()]


@cache
def registry() -> tuple[dict[str, Family], dict[str, Family], dict[str, Family]]:
    """Every family, found by walking the folder: by model_type, by class name, by GGUF architecture."""
    by_type: dict[str, Family] = {}
    by_class: dict[str, Family] = {}
    by_gguf: dict[str, Family] = {}
    for info in pkgutil.iter_modules(families.__path__):
        module = importlib.import_module(f"{families.__name__}.{info.name}")
        for family in module.FAMILIES:
            for kind, class_name in family.hf:
                _claim(by_type, kind, family)
                if not family.borrows:
                    _claim(by_class, class_name, family)
            for arch in family.gguf:
                _claim(by_gguf, arch, family)
    return by_type, by_class, by_gguf


def _claim(table: dict[str, Family], name: str, family: Family) -> None:
    if name in table and table[name] is not family:
        raise Internal("F120", f"{name} is claimed by {table[name].name} and {family.name}")
    table[name] = family


def recognise(ckpt: Checkpoint) -> Family:
    """The family that a checkpoint names: model_type, then architectures[0], or general.architecture.

    Raises Unsupported F121 for what uaii has no family for, Malformed F122 when the checkpoint names nothing.
    """
    return _by_gguf(ckpt) if ckpt.format == "gguf" else _by_config(ckpt)


def _by_gguf(ckpt: Checkpoint) -> Family:
    arch = ckpt.metadata.get("general.architecture")
    if not isinstance(arch, str):
        raise Malformed("F122", f"{ckpt.path.name} does not say its general.architecture", L.File(ckpt.path.name))
    table, kind = registry()[2], ckpt.metadata.get("general.type", "model")
    if kind != "model":
        raise Unsupported("F121", f"{ckpt.path.name} is no model: its general.type is {json.dumps(kind)[:80]}",
                          L.Key(ckpt.config_file, "general.type", json.dumps(kind)[:80]),
                          hint="give the file of the model itself; adapters and projectors are not loaded")
    if arch not in table:
        raise Unsupported("F121", f"unsupported GGUF architecture: {arch}",
                          L.Key(ckpt.config_file, "general.architecture", f'"{arch}"'),
                          hint=f"known architectures: {', '.join(sorted(table))}")
    return table[arch]


def _by_config(ckpt: Checkpoint) -> Family:
    meta, by_type, by_class = ckpt.metadata, registry()[0], registry()[1]
    kind, classes = meta.get("model_type"), meta.get("architectures")
    for name, fits, wanted in (("model_type", isinstance(kind, str), "a name"),
                               ("architectures", _words(classes), "a list of names")):
        if meta.get(name) is not None and not fits:
            raise Malformed("F122", f"{name} must be {wanted}", L.Key(ckpt.config_file, name, json.dumps(meta[name])[:200]))
    named = classes[0] if classes else None
    if kind is None and named is None:
        raise Malformed("F122", f"{ckpt.config_file} names neither model_type nor architectures", L.File(ckpt.config_file),
                        hint="recognition goes by these names only; structure is never guessed from tensor names")
    arch = named or str(kind)
    where = L.Key(ckpt.config_file, "architectures" if named else "model_type", f'"{arch}"')
    why = next((w for n, w in DENIED.items() if n in arch.lower()), "vision" if "vision_config" in meta else "")
    if meta.get("is_encoder_decoder") is True:
        why = "encoder-decoder"
    decoder = named is None or named.endswith(("CausalLM", "LMHeadModel"))
    family = by_type.get(str(kind)) if kind is not None else by_class.get(str(named))
    if why or not decoder or family is None:
        raise Unsupported("F121", f"unsupported Hugging Face architecture (decoder-only CausalLM required): {arch}", where,
                          why=f"{arch} is a {why} model" if why else f"no family is declared for model_type {kind}",
                          hint=_remote(meta) + _latent(meta) + f"known model types: {', '.join(sorted(by_type))}; "
                          "a new family is one file, see docs/writing_a_family.md")
    expected = [k for t, k in family.hf if t == kind or kind is None]
    if named is not None and named not in expected:
        raise Unsupported("F121", f"unsupported Hugging Face architecture (decoder-only CausalLM required): {arch}", where,
                          why=f"model_type {kind} goes with {', '.join(expected)}")
    return family


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(x, str) for x in value)


def _latent(meta: Mapping[str, Any]) -> str:
    return "HF MLA; use GGUF if there is one; " if "kv_lora_rank" in meta else ""


def _remote(meta: Mapping[str, Any]) -> str:
    return "the folder asks for remote code (auto_map), which is never executed; " if "auto_map" in meta else ""


def lower(ckpt: Checkpoint, accept: frozenset[str] = frozenset(), builds: type[Build] = Build) -> Lowered:
    """The checkpoint's graph in the model stage, every key and tensor accounted for. Reads no tensor data."""
    family = recognise(ckpt)
    config = family.config(family.name, ckpt, accept)
    graph = Graph(family.name, Stage.MODEL, [], {}, dict(DIMS))
    build = builds(family.name, config, ckpt, graph, family.tensors, family.dropped)
    try:
        family.model(config, build)
    except Internal as error:
        raise contradiction(error, config) from error
    context = config.context()
    build.close()
    config.close()
    graph.verify()
    return Lowered(graph, family, config, build, context)
