"""Gives a family file its hands: weights by our names, ops at a module path, the tensor account."""
from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from uaii.frontend.checkpoint import Checkpoint
from uaii.frontend.config import Config
from uaii.frontend.fp8 import fp8_block, scaled
from uaii.frontend.misfits import head_widths, strangers
from uaii.frontend.pairs import paired
from uaii.frontend.rope import Rope
from uaii.frontend.rope_divisors import divided
from uaii.frontend.tensors import At, Where
from uaii.ir import loc as L
from uaii.ir import ops
from uaii.ir.core import Builder, Graph, Input, Op, Value, Weight
from uaii.ir.diag import Malformed, Unsupported
from uaii.ir.known import origin, plain
from uaii.ir.recipe import Recipe, make
from uaii.ir.types import BLOCKS, FLOATS, FP8, Tensor


class Build(Builder):
    """Builds one family's graph over one checkpoint.

    Every tensor is bound to a weight, dropped by a rule with a reason, or reported by `close`.
    """

    def __init__(self, family: str, c: Config, ckpt: Checkpoint, graph: Graph, tensors: Mapping[str, Where],
                 dropped: Mapping[str, str]) -> None:
        super().__init__(graph)
        self.family, self.c, self.ckpt, self.tensors, self.dropped = family, c, ckpt, tensors, dropped
        self.bound: dict[str, str] = {}
        self.values: dict[str, int] = {}  # of tensors that are not their elements one by one
        self.missing: list[str] = []
        self.path: list[str] = []
        self.notes: list[str] = []
        self.llama3: dict[str, float] = {}
        self.fp8 = fp8_block(ckpt.metadata) if ckpt.format == "hf" else None

    # --- where we are

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Ops built inside stand at this module path."""
        self.path.append(name)
        try:
            with self.at(None):
                yield
        finally:
            self.path.pop()

    def locate(self) -> L.Loc:
        return self._site()

    def place(self, op: Op) -> None:
        stem = "/".join(self.path) or op.name
        for r in op.results:
            r.name = r.name or re.sub(r"^layers\.", "", stem).replace("/", ".")
        super().place(op)

    def _site(self) -> L.Site:
        frame = sys._getframe(1)
        while frame.f_back and "families" not in Path(frame.f_code.co_filename).parts:
            frame = frame.f_back
        parts = Path(frame.f_code.co_filename).parts
        file = "/".join(parts[parts.index("frontend"):]) if "frontend" in parts else parts[-1]
        return L.Site("/".join(self.path), file, frame.f_lineno)

    # --- weights

    def place_of(self, name: str, i: int | None = None) -> At | None:
        """Where the checkpoint has this weight, or None."""
        for at in self.tensors[name].places(self.ckpt.format):
            stored = replace(at, name=at.name.replace("{i}", str(i)))
            if stored.names(self.c)[0] in self.ckpt.tensors:
                return stored
        return None

    def stores(self, *names: str, i: int | None = None) -> bool:
        """Whether the checkpoint has any of these weights: where the tensors decide, half of them is not none."""
        return any(self.place_of(name, i) is not None for name in names)

    def weight(self, name: str, *shape: int, i: int | None = None) -> Weight:
        """The weight `name` of layer `i` with this shape. A missing or misshapen tensor is reported by `close`."""
        label = name if i is None else f"{i}.{name}"
        if label in self.graph.weights:
            return self.graph.weights[label]
        want = tuple(int(plain(d)) for d in shape)
        at = self.place_of(name, i)
        if at is None:
            places = self.tensors[name].places(self.ckpt.format)
            self.missing.append(" or ".join(p.name.replace("{i}", str(i)) for p in places) or label)
            return Weight(Tensor("f32", want), label, loc=L.File(self.ckpt.config_file))
        shape_there = want
        for undo in reversed(at.undo):
            shape_there = undo.stored(shape_there, self.c)
        names = at.names(self.c)
        if lost := [n for n in names if n not in self.ckpt.tensors]:
            self.missing += lost
            return Weight(Tensor("f32", want), label, loc=L.File(self.ckpt.config_file))
        sizes = [o for d in shape if (o := origin(d)) is not None]
        if at.pair is not None:
            recipe = paired(self, at.pair, names, name, shape_there, sizes)
        else:
            parts = [self._stored(n, name, shape_there[1:] if at.stack else shape_there, sizes) for n in names]
            recipe = self._stacked(parts, names) if at.stack else parts[0]
        for undo in at.undo:
            recipe = undo.apply(recipe, want, self.c)
        self.bound |= dict.fromkeys((*names, *recipe.loads), label)
        made = Weight(recipe.type, label, recipe=recipe,
                      loc=L.join(*(L.Stored(self.ckpt.tensors[n].file.name, n) for n in names), self._site()))
        self.graph.weights[label] = made
        return made

    def _stored(self, name: str, part: str, want: tuple[int, ...], sizes: list[L.Loc]) -> Recipe:
        """The tensor of the weight `part`, of this shape, which follows from `sizes`.

        Raises Malformed T203 (shape), Unsupported T204 (type).
        """
        stored = self.ckpt.tensors[name]
        loc = L.Stored(stored.file.name, name)
        if stored.type.shape != want:
            raise Malformed("T203", f"tensor {name} is {stored.type}, {self.family} needs {list(want)} here",
                            L.join(loc, *sizes),
                            why=head_widths(self.c, part, want, stored.type.sizes)
                            or "the sizes in the configuration and the stored tensors do not belong together",
                            hint=f"check the sizes in {self.c.file}, or that the weights are this model's")
        if stored.type.elem == FP8 and self.fp8:
            return scaled(self, name, self.fp8)
        if stored.type.elem not in (*FLOATS, *BLOCKS):
            says = (f"tensor {name} is {stored.type}, which is no weight" if self.ckpt.format == "gguf" else
                    f"safetensors dtype {stored.type.elem.upper()} is not loaded. Convert this checkpoint to BF16.")
            raise Unsupported("T204", says, loc)
        return make("load", name, stored.type)

    def _stacked(self, parts: list[Recipe], names: tuple[str, ...]) -> Recipe:
        """One weight of several tensors, which Malformed T207 wants stored alike."""
        odd = next((i for i, p in enumerate(parts) if p.type != parts[0].type), None)
        if odd is not None:
            elems = parts[odd].type.elem, parts[0].type.elem
            raise Malformed("T207", f"tensor {names[odd]} is stored as {elems[0]}, {names[0]} as {elems[1]}",
                            L.join(*(L.Stored(self.ckpt.tensors[names[i]].file.name, names[i]) for i in (odd, 0))),
                            why=f"{self.family} reads them as one weight", hint="store them all in one type")
        return make("stack", *parts)

    def optional(self, name: str, *shape: int, i: int | None = None, declared: Any = None) -> Weight | None:
        """A weight that may be absent: by its config flag where there is one, else by the checkpoint's tensors."""
        present = bool(declared) if declared is not None else self.place_of(name, i) is not None
        return self.weight(name, *shape, i=i) if present else None

    # --- pieces that every family is made of

    def linear(self, x: Value, name: str, out: int, i: int | None = None, bias: Any = None) -> Value:
        """x @ W^T (+ b) with W `name` [out, width of x]; `bias` is the config's word on `name.bias`, None if it has none."""
        inner = x.type.shape[-1]
        with self.scope(name.replace(".", "/")):
            b = self.optional(f"{name}.bias", out, i=i, declared=bias) if f"{name}.bias" in self.tensors else None
            return ops.Linear(x, self.weight(name, out, int(inner), i=i), b).out

    def rms_norm(self, x: Value, name: str, eps: float, i: int | None = None, offset: float = 0.0) -> Value:
        with self.scope(name.replace(".", "/")):
            return ops.RmsNorm(x, self.weight(name, int(x.type.shape[-1]), i=i), eps=eps, offset=offset).out

    def layer_norm(self, x: Value, name: str, eps: float, i: int | None = None, offset: float = 0.0,
                   bias: Any = True, per_head: bool = False) -> Value:
        """LayerNorm with weight `name` and, if `bias`, `name.bias`; a family without parameters declares no such tensor.

        `per_head` gives each head of x [B,S,n,d] its own parameters [n,d].
        """
        shape = tuple(int(n) for n in x.type.shape[-2 if per_head else -1:])
        with self.scope(name.replace(".", "/")):
            w = self.weight(name, *shape, i=i) if name in self.tensors else None
            shift = self.optional(f"{name}.bias", *shape, i=i, declared=bias) if f"{name}.bias" in self.tensors else None
            return ops.LayerNorm(x, w, shift, eps=eps, offset=offset).out

    def rope(self, x: Value, rope: Rope, positions: Value, dim: int, interleaved: bool = False) -> Value:
        """Rotates the first `dim` features; tensors of divisors divide the frequencies where the checkpoint stores some."""
        divisors, longer, scaling = divided(self, rope, int(plain(dim)))
        follows = scaling is not None and scaling.kind == "longrope" and longer is None
        with self.scope("rope"):
            op = ops.Rope(x, positions, None, divisors, longer, self._length() if follows else None, theta=rope.theta, dim=dim,
                          interleaved=interleaved, scaling=scaling, magnitude=rope.magnitude)
            if scaling is not None:
                object.__setattr__(op, "attr_locs", {**op.attr_locs, "scaling": rope.loc})
            return op.out

    def _length(self) -> Input:
        """The optional input that states how long a text becomes that runs in parts; 0 leaves it to the part."""
        found = next((v for v in self.graph.inputs if v.name == "rope_length"), None)
        if found is None:
            found = Input(Tensor("i64", ()), "rope_length", default=0)
            self.graph.inputs.append(found)
        return found

    # --- the account

    def close(self) -> None:
        """Raises Malformed T201 (missing tensors) or T202 (tensors nobody uses), each listing them all."""
        left = [n for n in self.ckpt.tensors if n not in self.bound and self.drop_reason(n) is None]
        if self.missing and not self.bound:
            raise self._unknown_layout()
        if self.missing:
            names = list(dict.fromkeys(self.missing))
            raise Malformed("T201", f"{self.family} needs {_count(names)} that the checkpoint lacks: {_list(names)}",
                            L.File(str(self.ckpt.path)), notes=[f"unused here: {_list(left)}"] if left else [],
                            hint="take the publisher's complete file; nothing is ever filled in")
        if left:
            raise Malformed("T202", f"{self.family} does not use {_count(left)} of the checkpoint: {_list(left)}",
                            L.join(*(L.Stored(self.ckpt.tensors[n].file.name, n) for n in left[:8])),
                            why="a tensor nobody reads is a part of the model that is left out", notes=strangers(left),
                            hint="the configuration and the weights disagree, or this is a variant that uaii does not know")

    def drop_layers(self, first: int, count: int, why: str) -> None:
        """Leaves out the tensors of `count` layers from number `first` on."""
        self.dropped = {**self.dropped, **{rf"(model\.layers|blk)\.{i}\..+": why for i in range(first, first + count)}}

    def drop_reason(self, name: str) -> str | None:
        """Why a stored tensor may be left out, or None."""
        return next((why for pattern, why in self.dropped.items() if re.fullmatch(pattern, name)), None)

    def _unknown_layout(self) -> Malformed:
        path, first = self.ckpt.path, ", ".join(list(self.ckpt.tensors)[:20])
        where = L.File(str(path))
        if self.ckpt.format == "hf":
            return Malformed("T205", f"HF decoder layout not recognized under {path}. First tensors: {first}. Expected e.g. "
                             "model.layers.0.self_attn.q_proj.weight. See docs/huggingface_support.md", where)
        if not first:
            return Malformed("T205", f"{path.name} holds no tensors: it is a vocabulary or a header without its model", where,
                             hint="uaii tokenize reads it; to compile, take the model's own file")
        return Malformed("T205", f"GGUF layout not recognized in {path.name}. First tensors: {first}. Expected e.g. "
                         "blk.0.attn_q.weight. See docs/gguf_support.md", where)


def _count(names: list[str]) -> str:
    return f"{len(names)} tensor{'' if len(names) == 1 else 's'}"


def _list(names: list[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")

