"""What a checkpoint says about itself: sizes, rotation, windows, experts; whatever its family, and when it has none."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from uaii import measure
from uaii.compiler import Compiled, rewrite
from uaii.frontend.checkpoint import Checkpoint
from uaii.frontend.common import DecoderConfig
from uaii.frontend.config import Config
from uaii.frontend.family import Family, lower, recognise, registry
from uaii.frontend.hf_blockers import KEYS, read_method
from uaii.frontend.rope import Rope
from uaii.frontend.supposed import Supposed
from uaii.frontend.window import WindowKeys
from uaii.ir import loc as L
from uaii.ir.diag import Diagnostic
from uaii.ir.known import origin, plain
from uaii.record import experts_held, first_step

Facts = dict[str, Any]
# What a fact is called in the report, and the entry of a family's configuration that holds it.
SIZES = {"layers": "layers", "heads": "heads", "kv_heads": "kv_heads", "head_dim": "head_dim", "hidden": "width", "ffn": "ffn",
         "vocab": "vocab", "context": "max_positions"}
ROUTING = ("groups", "groups_used", "dense_layers")  # entries that say which experts a token has


def named_family(ckpt: Checkpoint) -> Family | None:
    """The family that the checkpoint names, even one that recognition refuses for another reason."""
    try:
        return recognise(ckpt)
    except Diagnostic:
        if ckpt.format == "gguf":
            return None
        classes = ckpt.metadata.get("architectures")
        first = str(classes[0]) if isinstance(classes, list) and classes else ""
        by_type, by_class, _ = registry()
        return by_type.get(str(ckpt.metadata.get("model_type"))) or by_class.get(first)


def architecture(ckpt: Checkpoint) -> str | None:
    """The name that recognition goes by: architectures[0] or model_type, or general.architecture."""
    if ckpt.format == "gguf":
        said = ckpt.metadata.get("general.architecture")
        return said if isinstance(said, str) else None
    classes = ckpt.metadata.get("architectures")
    said = classes[0] if isinstance(classes, list) and classes else ckpt.metadata.get("model_type")
    return said if isinstance(said, str) else None


def dtypes(ckpt: Checkpoint) -> dict[str, int]:
    """Element types as the files name them, the most frequent first, with the number of tensors of each."""
    return dict(Counter(t.type.elem.upper() for t in ckpt.tensors.values()).most_common())


def facts(ckpt: Checkpoint, family: Family | None, made: Compiled | None, weights: str = "auto") -> Facts:
    """Every fact that can be told, None for what cannot. `made` is the checkpoint taken as far as it goes; `weights` is what a
    configuration without weights is planned with.

    Sizes in tokens, heads and features; `parameters` counts stored values; `*_bytes` are bytes.
    """
    c = family.config.peek(family.name, ckpt) if family else DecoderConfig.peek("unknown", ckpt)
    out: Facts = {name: _size(c, entry, family is not None) for name, entry in SIZES.items()}
    plan = made or _planned(ckpt, weights)
    if plan is not None:
        out["vocab"], out["context"] = plan.lowered.hparams["vocab_size"], plan.lowered.context_length
    out["vocab"] = out["vocab"] or _rows(ckpt)
    kinds = dtypes(ckpt)
    out |= {
        "parameters": (made.lowered.parameters if made else sum(t.type.count for t in ckpt.tensors.values())) or None,
        "tensors": len(ckpt.tensors), "dtypes": kinds,
        "weight_bytes": sum(t.nbytes for t in ckpt.tensors.values()) or None,
        "rope": ropes(c, ckpt), **_latent(c), "moe": _experts(c, ckpt),
        "experts_held": plan and experts_held(plan.graph), "sliding_window": _windows(c, ckpt, made),
        "tied_embeddings": _tied(c, ckpt, made),
    }
    return out | _costs(out, plan)


def _size(c: Config, entry: str, known_family: bool) -> Any:
    """An entry's value; without a family only what the file itself states, since defaults belong to a family."""
    declared, value = c._entries.get(entry), plain(c.__dict__.get(entry))
    stated = declared is not None and any(c.has(k) for k in declared.keys(c.fmt))
    return value if (known_family or stated) and value != 0 else None


def _rows(ckpt: Checkpoint) -> int | None:
    tokens = ckpt.metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) else None


def ropes(c: Config, ckpt: Checkpoint) -> list[Facts]:
    """Each different rotation once: kind, base and the key that states it, parameters, number of layers that have it."""
    read = Counter(r for v in c.__dict__.values() for r in _each(v) if isinstance(r, Rope))
    divisors = [n for n in ckpt.tensors if n.startswith(("rope_freqs", "rope_factors"))]
    out = []
    for rope, layers in read.items():
        said = origin(rope.theta) or rope.loc
        scaling = rope.scaling
        out.append({"kind": scaling.kind if scaling else "default", "base": float(rope.theta),
                    "from": [L.show_leaf(x) for x in L.leaves(said)], "layers": layers if len(read) > 1 else None,
                    "parameters": dict(scaling.params) if scaling else {}, "divided_by": divisors})
    return out or list(_stated_rope(ckpt))


def _each(value: Any) -> Iterator[Any]:
    """A value, or the members of a container of values."""
    yield from value if isinstance(value, tuple | list) else value.values() if isinstance(value, dict) else (value,)


def _stated_rope(ckpt: Checkpoint) -> Iterator[Facts]:
    """What the raw keys say of rotation, for a family or a kind that uaii does not know."""
    meta, prefix = ckpt.metadata, f"{ckpt.metadata.get('general.architecture')}."
    if ckpt.format == "gguf":
        kind, base, at = meta.get(f"{prefix}rope.scaling.type"), meta.get(f"{prefix}rope.freq_base"), f"{prefix}rope.freq_base"
    else:
        record = next((r for k in ("rope_scaling", "rope_parameters") if isinstance(r := meta.get(k), Mapping)), {})
        kind, at = record.get("rope_type", record.get("type")), "rope_theta"
        base = record.get("rope_theta", meta.get("rope_theta"))
    if kind is not None or base is not None:
        yield {"kind": str(kind or "default"), "base": base, "from": [L.show_leaf(L.Key(ckpt.config_file, at, str(base)))],
               "layers": None, "parameters": {}, "divided_by": []}


def _latent(c: Config) -> dict[str, dict[str, int]]:
    """Numbers of the one row that latent attention keeps of a token in a layer: latent, rotated; nothing for other attention."""
    found = {ours: plain(c.__dict__.get(entry)) for ours, entry in (("latent", "kv_rank"), ("rotated", "turned"))}
    return {"latent_attention": found} if all(isinstance(v, int) for v in found.values()) else {}


def _experts(c: Config, ckpt: Checkpoint) -> dict[str, int]:
    """The expert counts that are not zero, by entry or, without a family's word, by raw key; empty for a dense model."""
    read = {n: plain(v) for n, v in c.__dict__.items() if ("experts" in n or n in ROUTING) and isinstance(v, int) and v}
    raw = {k: v for k, v in ckpt.metadata.items() if "expert" in k and type(v) is int and v}
    return read or raw


def _windows(c: Config, ckpt: Checkpoint, made: Compiled | None) -> dict[str, int] | None:
    """Window in tokens -> number of layers, empty when every layer sees all; None when nothing says."""
    if made is not None:
        seen = [op.attrs["window"] for op in made.lowered.graph.ops if "window" in op.attr_names]
        return _counted(seen)
    declared = [n for n, e in c._entries.items() if isinstance(e, WindowKeys)]
    if declared:
        values = c.__dict__[declared[0]]
        return None if values is None else _counted([plain(v) for v in values])
    raw = ckpt.metadata.get("sliding_window")
    return {str(raw): 0} if isinstance(raw, int) and ckpt.format == "hf" else {}


def _counted(windows: list[int]) -> dict[str, int]:
    return {str(w): n for w, n in Counter(windows).items() if w}


def _tied(c: Config, ckpt: Checkpoint, made: Compiled | None) -> bool | None:
    """Whether the head multiplies by the embedding table: as the graph does, else as the checkpoint says."""
    if made is not None:
        return "head" not in made.lowered.build.bound.values()
    said = plain(c.__dict__.get("tied"))
    return bool(said) if said is not None and ckpt.format == "hf" else None


def _planned(ckpt: Checkpoint, weights: str) -> Compiled | None:
    """What a configuration without its weights would compile to, a quantisation that is not read taken for none; None when
    there are weights, or it is not that far."""
    if ckpt.tensors or ckpt.format != "hf":
        return None
    unread = [k for k in KEYS if k in ckpt.metadata] if read_method(ckpt.metadata) is None else []
    try:
        lowered = lower(ckpt, frozenset(unread), builds=Supposed)
        options = {"target": "cpu", "weights": weights}
        steps = [first_step(lowered.graph)]
        return rewrite(Compiled(ckpt, lowered, lowered.graph, [], [], options, lowered.context_length, steps))
    except Diagnostic:
        return None


def _costs(sizes: Facts, made: Compiled | None) -> Facts:
    """Bytes of the artifact's weights, of weights read for a token, of cache kept for a token (cache in f32), and of what a
    run holds before its cache: onnxruntime keeps every weight once, in its own layout or mapped from the file."""
    finished = made is not None and str(made.graph.stage) == "ort"
    dims = [sizes[k] for k in ("layers", "kv_heads", "head_dim")]
    cache = measure.cache_per_token(made.lowered.graph) if made is not None else None
    if cache is None and all(isinstance(d, int) for d in dims):
        cache = dims[0] * dims[1] * dims[2] * 2 * 4
    stored = measure.stored(made.graph) if made is not None and finished else None
    return {"artifact_bytes": stored,
            "ram_to_load_bytes": measure.loaded(made.graph) if made is not None and finished else None,
            "read_bytes_per_token": measure.read_per_token(made.graph) if made is not None and finished else None,
            "kv_bytes_per_token": cache}
