"""Positions, rotation and attention."""
from __future__ import annotations

import numpy as np

from uaii.backends.onnx.emit import MS, Emit, emits
from uaii.ir import ops


@emits(ops.Positions)
def positions(op: ops.Positions, e: Emit) -> None:
    """cumsum(mask) - 1, not below 0, the last S columns."""
    counted = e.node("CumSum", op.mask, e.const(np.int64(1)), outputs=(e.temp("counted"),))
    from_zero = e.node("Sub", counted, e.const(np.int64(1)), outputs=(e.temp("from_zero"),))
    legal = e.node("Max", from_zero, e.const(np.int64(0)), outputs=(e.temp("legal"),))
    length = e.node("Shape", op.ids, outputs=(e.temp("length"),), start=1, end=2)
    start = e.node("Neg", length, outputs=(e.temp("start"),))
    one = e.const(np.array([1], np.int64))
    e.node("Slice", legal, start, e.const(np.array([np.iinfo(np.int64).max], np.int64)), one)


@emits(ops.Temperature)
def temperature(op: ops.Temperature, e: Emit) -> None:
    """The quotient of integers is whole, as positions are not negative."""
    one = e.const(np.float32(1))
    passed = e.node("Div", op.positions, e.const(np.int64(op.length)), outputs=(e.temp("passed"),))
    count = e.node("Cast", passed, outputs=(e.temp("count"),), to=1)
    grown = e.node("Log", e.node("Add", count, one, outputs=(e.temp("from_one"),)), outputs=(e.temp("log"),))
    e.node("Add", e.node("Mul", grown, e.const(np.float32(op.beta)), outputs=(e.temp("share"),)), one)


@emits(ops.ScaleRows)
def scale_rows(op: ops.ScaleRows, e: Emit) -> None:
    axes = e.const(np.arange(2, op.x.type.rank, dtype=np.int64))
    e.node("Mul", op.x, e.node("Unsqueeze", op.by, axes, outputs=(e.temp("factors"),)))


@emits(ops.SplitHeads)
def split_heads(op: ops.SplitHeads, e: Emit) -> None:
    d = int(op.x.type.shape[-1]) // op.n
    e.node("Reshape", op.x, e.const(np.array([0] * (op.x.type.rank - 1) + [op.n, d], np.int64)))


@emits(ops.MergeHeads)
def merge_heads(op: ops.MergeHeads, e: Emit) -> None:
    e.node("Reshape", op.x, e.const(np.array([0] * (op.x.type.rank - 2) + [int(op.out.type.shape[-1])], np.int64)))


@emits(ops.DynamicFreqs)
def dynamic_freqs(op: ops.DynamicFreqs, e: Emit) -> None:
    """f32 throughout, as transformers computes it."""
    def f32(x: float) -> str:
        return e.const(np.float32(x))

    last = e.node("ReduceMax", op.positions, outputs=(e.temp("last"),), keepdims=0)
    count = e.node("Add", last, e.const(np.int64(1)), outputs=(e.temp("count"),))
    longest = e.node("Max", count, e.const(np.int64(op.max_positions)), outputs=(e.temp("longest"),))
    length = e.node("Cast", longest, outputs=(e.temp("length"),), to=1)
    scaled = e.node("Mul", length, f32(op.factor / op.max_positions), outputs=(e.temp("scaled"),))
    growth = e.node("Sub", scaled, f32(op.factor - 1), outputs=(e.temp("growth"),))
    power = e.node("Pow", growth, f32(op.dim / (op.dim - 2)), outputs=(e.temp("power"),))
    base = e.node("Mul", power, f32(op.theta), outputs=(e.temp("base"),))
    e.node("Pow", base, e.const((-np.arange(0, op.dim, 2) / op.dim).astype(np.float32)))


@emits(ops.LengthFreqs)
def length_freqs(op: ops.LengthFreqs, e: Emit) -> None:
    """The row of the table by length. Cached keys that were turned for a short text, and new ones for a long, would be wrong
    in silence: the row's index is out of the table's range then, which stops the run."""
    axis, limit = e.const(np.array([1], np.int64)), e.const(np.int64(op.limit))
    last = e.node("ReduceMax", op.positions, axis, outputs=(e.temp("last"),), keepdims=0)
    grown = e.node("GreaterOrEqual", last, limit, outputs=(e.temp("grown"),))
    stated = e.node("Greater", op.length, limit, outputs=(e.temp("stated"),))
    far = e.node("Cast", e.node("Or", grown, stated, outputs=(e.temp("is_far"),)), outputs=(e.temp("far"),), to=7)
    first = e.node("ReduceMin", op.positions, axis, outputs=(e.temp("first"),), keepdims=0)
    bounded = e.node("Clip", first, e.const(np.int64(1)), limit, outputs=(e.temp("bounded"),))
    cached = e.node("Equal", first, bounded, outputs=(e.temp("cached"),))
    unsaid = e.node("Not", stated, outputs=(e.temp("unsaid"),))
    crosses = e.node("And", e.node("And", grown, cached, outputs=(e.temp("grows"),)), unsaid, outputs=(e.temp("crosses"),))
    row = e.node("Where", crosses, e.const(np.int64(2)), far, outputs=(e.temp("row"),))
    e.node("Gather", op.table, row, label=f"cached_keys_are_for_{op.limit}_tokens_at_most_run_the_whole_text_again")


@emits(ops.RopeTable)
def rope_table(op: ops.RopeTable, e: Emit) -> None:
    at = e.node("Cast", op.positions, outputs=(e.temp("positions"),), to=1)
    column = e.node("Unsqueeze", at, e.const(np.array([-1], np.int64)), outputs=(e.temp("column"),))
    one_each = op.freqs.type.rank == 2
    freqs = e.node("Unsqueeze", op.freqs, e.const(np.array([1], np.int64)), outputs=(e.temp("freqs"),)) if one_each else op.freqs
    angle = e.node("Mul", column, freqs, outputs=(e.temp("angle"),))
    for kind, out in zip(("Cos", "Sin"), op.results, strict=True):
        plain = op.magnitude == 1.0
        turned = e.node(kind, angle, outputs=(out if plain else e.temp(kind.lower()),))
        if not plain:
            e.node("Mul", turned, e.const(np.float32(op.magnitude)), outputs=(out,))


@emits(ops.Rotary)
def rotary(op: ops.Rotary, e: Emit) -> None:
    e.node("RotaryEmbedding", op.x, op.cos, op.sin, num_heads=op.heads, interleaved=int(op.interleaved),
           rotary_embedding_dim=2 * int(op.cos.type.shape[-1]))


@emits(ops.KeyLengths)
def key_lengths(op: ops.KeyLengths, e: Emit) -> None:
    """Real tokens minus one. The kernel counts keys from slot 0 of each row, so a row that begins with padding would be
    wrong in silence: its index into a table of one element is out of range, which stops the run."""
    count = e.node("ReduceSum", op.mask, e.const(np.array([1], np.int64)), outputs=(e.temp("count"),), keepdims=0)
    first = e.node("Gather", op.mask, e.const(np.int64(0)), outputs=(e.temp("first"),), axis=1)
    padded = e.node("Sub", e.const(np.int64(1)), first, outputs=(e.temp("padded"),))
    minus_one = e.node("Gather", e.const(np.array([-1], np.int64)), padded, outputs=(e.temp("minus_one"),),
                       label="left_padding_is_not_supported_pad_on_the_right")
    less = e.node("Add", count, minus_one, outputs=(e.temp("less"),))
    if op.start is not None:
        less = e.node("Sub", less, op.start, outputs=(e.temp("seen"),))
    e.node("Cast", less, to=6)


@emits(ops.TotalLength)
def total_length(op: ops.TotalLength, e: Emit) -> None:
    width = e.node("Shape", op.mask, outputs=(e.temp("width"),), start=1, end=2)
    scalar = e.node("Squeeze", width, outputs=(e.temp("scalar"),))
    if op.start is not None:
        scalar = e.node("Sub", scalar, op.start, outputs=(e.temp("seen"),))
    e.node("Cast", scalar, to=6)


@emits(ops.Gqa)
def gqa(op: ops.Gqa, e: Emit) -> None:
    e.node("GroupQueryAttention", op.q, op.k, op.v, op.past_k, op.past_v, op.lengths, op.total, op.cos, op.sin,
           op.positions, None, op.sinks, domain=MS, num_heads=op.heads, kv_num_heads=op.kv_heads, scale=op.scale,
           softcap=op.softcap, local_window_size=op.window or -1, do_rotary=int(op.cos is not None),
           rotary_interleaved=int(op.interleaved))
