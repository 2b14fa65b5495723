"""Latent attention in its two forms, which a step chooses by its length: absorbed or with keys and values written out."""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from uaii.backends.onnx.emit import MS, Body, Emit, emits
from uaii.ir import ops

MARGIN = 1.25  # over the count of products: the forms' times cross at 0.8 to 1.25 of it (docs/performance.md)
TOGETHER = 4   # heads written out at a time, so that memory does not grow with the number of heads
FULL = ("y", "present_key", "present_value")


@dataclass(frozen=True)
class Sizes:
    """Of one layer: heads, plain features of a key, latent ones, rotated ones, features of a value."""

    heads: int
    plain: int
    latent: int
    turned: int
    value: int

    @property
    def row(self) -> int:
        """Features of a cached row."""
        return self.latent + self.turned

    @property
    def head(self) -> int:
        """Features of a head written out: the kernel wants one width for keys and values, a multiple of 8."""
        return -(-max(self.plain + self.turned, self.value) // 8) * 8

    @property
    def together(self) -> int:
        """Heads written out at a time."""
        return next(n for n in range(TOGETHER, 0, -1) if self.heads % n == 0)

    @property
    def crossing(self) -> int:
        """New tokens t from which writing out a long past is worth its products; 0 where it never is.

        A pair of query and key takes 2 row products absorbed and 2 head written out; writing out takes latent (plain + value)
        for each past token, and for each new one what absorbing it takes. So S new tokens after P gain from
        S (S + 2 P) (row - head) > P latent (plain + value), that is S (S + 2 P) > 2 t P.
        """
        saved = 2 * (self.row - self.head)
        return max(8, math.ceil(MARGIN * self.latent * (self.plain + self.value) / saved)) if saved > 0 else 0


@emits(ops.LatentGqa)
def latent_gqa(op: ops.LatentGqa, e: Emit) -> None:
    """Keys and values are the same rows, so the kernel gets them twice; what it returns beyond the latent features is dropped."""
    heads, n, c = op.k_up.type.sizes
    z = Sizes(heads, n, c, int(op.past.type.shape[3]) - c, op.v_up.type.sizes[1])
    op.need(n == op.q_plain.type.shape[3], "k_up does not fit q")
    operands = {"q_plain": op.q_plain, "q_turned": op.q_turned, "latent": op.latent, "k_turned": op.k_turned, "k_up": op.k_up,
                "v_up": op.v_up, "past_key": op.past, "past_value": op.past_v, "lengths": op.lengths, "total": op.total}

    def body(b: Body) -> None:
        b.node("Concat", "latent", _flat(b, "k_turned", z.turned), axis=-1, outputs="row")
        if not z.crossing:
            _absorbed(b, z, op.scale, FULL)
            return
        b.node("Cast", "total", to=TensorProto.INT64, outputs="width")
        branches: dict[str, onnx.GraphProto] = {}
        for name, form in (("then", _expanded), ("else", _absorbed)):
            branch = Body(prefix=f"{name}_")
            outputs = tuple(branch.prefix + o for o in FULL)
            form(branch, z, op.scale, outputs)
            branches[f"{name}_branch"] = branch.graph(*outputs)
        b.node("If", _pays(b, z.crossing), outputs=FULL, **branches)

    e.call("LatentAttention", operands, FULL, body)


def _pays(b: Body, t: int) -> str:
    """Whether S (S + 2 P) > 2 t P + (t / 4)^2: below the last term nodes cost more than products.

    With T = S + P and a = S - t that is a (2 T - a) > (t / 4)^2 - t^2, in fewer nodes for a step of one token.
    """
    over = b.node("Sub", b.node("Shape", "latent", start=1, end=2), b.const(np.array([t], np.int64)))
    rest = b.node("Sub", b.node("Add", "width", "width"), over)
    return b.node("Greater", b.node("Mul", over, rest), b.const(np.array([(t // 4) ** 2 - t * t], np.int64)))


def _absorbed(b: Body, z: Sizes, scale: float, outputs: tuple[str, ...]) -> None:
    """Every head asks for latent rows, through its k_up, and what it gets goes through its v_up."""
    by_head = b.node("Transpose", "q_plain", perm=[0, 2, 1, 3])
    absorbed = b.node("Transpose", b.node("MatMul", by_head, "k_up"), perm=[0, 2, 1, 3])
    q = _flat(b, b.node("Concat", absorbed, "q_turned", axis=-1), z.heads * z.row)
    attended = _attend(b, (q, "row", "row", "past_key", "past_value"), (z.heads, 1), scale, outputs[1:])
    rows = b.node("Reshape", attended, b.const(np.array([0, 0, z.heads, z.row], np.int64)))
    mine = _cut(b, rows, 3, z.latent)
    up = b.node("FusedMatMul", b.node("Transpose", mine, perm=[0, 2, 1, 3]), "v_up", domain=MS, transB=1)
    merged = b.node("Transpose", up, perm=[0, 2, 1, 3])
    b.node("Reshape", merged, b.const(np.array([0, 0, z.heads * z.value], np.int64)), outputs=outputs[0])


def _expanded(b: Body, z: Sizes, scale: float, outputs: tuple[str, ...]) -> None:
    """Keys and values of a few heads at a time. The cache is written by the kernel, of one head that nobody reads: it alone
    appends to a buffer in place."""
    _attend(b, ("row", "row", "row", "past_key", "past_value"), (1, 1), scale, outputs[1:])
    group, extra = z.together, z.head - z.plain - z.turned
    width = b.node("Reshape", "width", b.const(np.array([1], np.int64)))
    rows = b.node("Slice", outputs[1], *_bounds(b, 0), width, b.const(np.array([2], np.int64)))
    latents, turns = f"{b.prefix}latents", f"{b.prefix}turns"
    b.node("Split", rows, b.const(np.array([z.latent, z.turned], np.int64)), outputs=(latents, turns), axis=3)
    every = b.node("Expand", _widened(b, turns, extra), b.const(np.array([1, group, 1, 1], np.int64)))
    q = b.node("Concat", "q_plain", _widened(b, "q_turned", extra), axis=-1)

    def heads(h: Body) -> str:
        size = h.const(np.array([group], np.int64))
        first = h.node("Mul", f"{h.prefix}turn", size)
        last = h.node("Add", first, size)
        k_up, v_up, asked = (h.node("Slice", x, first, last, h.const(np.array([axis], np.int64)))
                             for x, axis in (("k_up", 0), ("v_up", 0), (q, 2)))
        key = h.node("Concat", h.node("FusedMatMul", latents, k_up, domain=MS, transB=1), every, axis=-1)
        value = _widened(h, h.node("FusedMatMul", latents, v_up, domain=MS, transB=1), z.head - z.value)
        flat = _flat(h, asked, group * z.head)
        none = _cut(h, flat, 1, 0)  # past keys hold the new ones too
        attended = _attend(h, (flat, none, none, key, value), (group, group), scale, ("all_keys", "all_values"))
        got = h.node("Reshape", attended, h.const(np.array([0, 0, group, z.head], np.int64)))
        return _cut(h, got, 3, z.value)

    loop = Body(prefix="heads_")
    result = heads(loop)
    turn, go, going = (helper.make_tensor_value_info(f"{loop.prefix}{n}", t, []) for n, t in
                       (("turn", TensorProto.INT64), ("go", TensorProto.BOOL), ("going", TensorProto.BOOL)))
    loop.node("Identity", go.name, outputs=going.name)
    parts = b.node("Loop", b.const(np.int64(z.heads // group)), b.const(np.array(True)),
                   body=loop.graph(going, result, inputs=(turn, go)))
    merged = b.node("Transpose", parts, perm=[1, 2, 0, 3, 4])
    b.node("Reshape", merged, b.const(np.array([0, 0, z.heads * z.value], np.int64)), outputs=outputs[0])


def _attend(b: Body, operands: tuple[str, ...], heads: tuple[int, int], scale: float, present: tuple[str, ...]) -> str:
    """GroupQueryAttention of (q, k, v, past_k, past_v) with so many heads and key heads; returns what it attends."""
    return b.node("GroupQueryAttention", *operands, "lengths", "total", domain=MS, outputs=(f"{b.prefix}attended", *present),
                  num_heads=heads[0], kv_num_heads=heads[1], scale=scale)


def _flat(b: Body, x: str, size: int) -> str:
    return b.node("Reshape", x, b.const(np.array([0, 0, size], np.int64)))


def _cut(b: Body, x: str, axis: int, size: int) -> str:
    """The first `size` along `axis`."""
    return b.node("Slice", x, *_bounds(b, 0, size, axis))


def _bounds(b: Body, *at: int) -> list[str]:
    return [b.const(np.array([x], np.int64)) for x in at]


def _widened(b: Body, x: str, extra: int) -> str:
    """x of rank 4 with so many zeros after its features."""
    return b.node("Pad", x, b.const(np.array([0] * 7 + [extra], np.int64))) if extra else x
