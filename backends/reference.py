"""What each op means, in NumPy and f64. Slow, plain, and the judge of every pass and backend."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from uaii.backends import recipes
from uaii.backends.rows import Weights, stretches
from uaii.ir import ops
from uaii.ir.core import Graph, Op, Value, Weight
from uaii.ir.diag import Internal

Array = Any  # NumPy's own stubs widen to Any at every turn
Rule = Callable[..., Any]
Watch = Callable[[Op, dict[str, Any]], None]
RULES: dict[type[Op], Rule] = {}
BY_ROWS: dict[type[Op], tuple[str, ...]] = {}


def means(kind: type[Op], *by_rows: str) -> Callable[[Rule], Rule]:
    """Registers the meaning of an op: operands and attributes by name, arrays out. Of the operands in `by_rows` it only takes
    the length, and rows by index or slice, so that they need not be there whole."""
    def put(rule: Rule) -> Rule:
        if kind in RULES:
            raise TypeError(f"{kind.name} has two meanings")
        BY_ROWS[kind] = by_rows
        return RULES.setdefault(kind, rule)
    return put


def has_meaning(graph: Graph) -> bool:
    """Whether the graph can be evaluated: a scaled rotation means what fold-rope says, so it has no meaning before that."""
    return all(type(op) in RULES and not (isinstance(op, ops.Rope) and op.scaling) for op in graph.ops)


def evaluate(graph: Graph, feeds: Mapping[str, Array], source: recipes.Source, watch: Watch | None = None,
             rounds: Callable[[Op], bool] = lambda op: False) -> list[Array]:
    """The graph's outputs. Feeds are by input name; an input with a default may be left out. `watch` sees every op with its
    operands' values. Weights are computed when an op takes them and let go after it, values after their last use.

    int8_activations is a liberty of the kernel and means nothing here, but where `rounds` says so: then the op's activations
    are rounded as the kernel rounds them.
    """
    env: dict[Value, Any] = {v: feeds[v.name] if v.default is None or v.name in feeds else np.int64(v.default)
                             for v in graph.inputs}
    weights = Weights(graph, source)
    last = {v: op for op in graph.ops for v in op.operands}
    for op in graph.ops:
        if type(op) not in RULES:
            raise Internal("R001", f"{op.name} has no reference meaning", op.loc)
        args = {n: weights.take(v, n in BY_ROWS[type(op)]) if isinstance(v, Weight) else None if v is None else env[v]
                for n in op.operand_names for v in (getattr(op, n),)}
        if watch:
            watch(op, args)
        also = {"rounded": True} if op.attrs.get("int8_activations") and rounds(op) else {}
        got = RULES[type(op)](**args, **op.attrs, **also)
        env |= zip(op.results, got if isinstance(got, tuple) else (got,), strict=True)
        for v in {*op.operands, *op.results} - set(graph.outputs):
            if last.get(v) in (op, None):
                env.pop(v, None)
    return [weights.take(v) if isinstance(v, Weight) else env[v] for v in graph.outputs]


def _product(x: Array, weight: Callable[[slice], Array], rows: int) -> Array:
    """x @ weight.T, so many rows of it at a time that they fit the memory."""
    return np.concatenate([x @ weight(at).T for at in stretches(rows, x.shape[-1])], -1)


@means(ops.Embedding, "table")
def embedding(ids: Array, table: Array) -> Array:
    return table[ids]


@means(ops.Linear, "weight")
def linear(x: Array, weight: Array, bias: Array | None) -> Array:
    return _product(x, weight.__getitem__, len(weight)) + (0 if bias is None else bias)


@means(ops.RmsNorm)
def rms_norm(x: Array, weight: Array, eps: float, offset: float) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * (weight + offset)


@means(ops.LayerNorm)
def layer_norm(x: Array, weight: Array | None, bias: Array | None, eps: float, offset: float) -> Array:
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
    return y * (1 if weight is None else weight + offset) + (0 if bias is None else bias)


@means(ops.LastPositions)
def last_positions(x: Array, keep: Array) -> Array:
    return x[:, -int(keep):] if keep else x


@means(ops.Add)
def add(a: Array, b: Array) -> Array:
    return a + b


@means(ops.Mul)
def mul(a: Array, b: Array) -> Array:
    return a * b


@means(ops.Scale)
def scale(x: Array, by: float) -> Array:
    return x * by


@means(ops.Softcap)
def softcap(x: Array, cap: float) -> Array:
    return cap * np.tanh(x / cap)


@means(ops.Clamp)
def clamp(x: Array, limit: float) -> Array:
    return np.clip(x, -limit, limit)


def _erf(x: Array) -> Array:
    import math
    return np.vectorize(math.erf)(x)


ACTS: dict[str, Callable[[Array], Array]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * (1 + _erf(x / np.sqrt(2.0))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
}


@means(ops.Activation)
def activation(x: Array, act: str) -> Array:
    return ACTS[act](x)


@means(ops.Gated)
def gated(gate: Array, up: Array, act: str) -> Array:
    return ACTS[act](gate) * up


@means(ops.RowGate)
def row_gate(x: Array, score: Array) -> Array:
    return x / (1 + np.exp(-score))


@means(ops.Positions)
def positions(mask: Array, ids: Array) -> Array:
    return np.maximum(np.cumsum(mask, axis=1) - 1, 0)[:, -ids.shape[1]:]


@means(ops.Temperature)
def temperature(positions: Array, beta: float, length: int) -> Array:
    return 1 + beta * np.log1p(positions // length)


@means(ops.ScaleRows)
def scale_rows(x: Array, by: Array) -> Array:
    return x * by.reshape(*by.shape, *[1] * (x.ndim - 2))


@means(ops.SplitHeads)
def split_heads(x: Array, n: int) -> Array:
    return x.reshape(*x.shape[:-1], n, -1)


@means(ops.MergeHeads)
def merge_heads(x: Array) -> Array:
    return x.reshape(*x.shape[:-2], -1)


def turn(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Rotates the first 2*width features of x [...,d] by cos and sin [...,width]."""
    width = cos.shape[-1]
    dim = 2 * width
    a, b = (x[..., 0:dim:2], x[..., 1:dim:2]) if interleaved else (x[..., :width], x[..., width:dim])
    y = [a * cos - b * sin, b * cos + a * sin]
    turned = np.stack(y, -1).reshape(*x.shape[:-1], dim) if interleaved else np.concatenate(y, -1)
    return np.concatenate([turned, x[..., dim:]], -1)


@means(ops.Rope)
def rope(x: Array, positions: Array, freqs: Array | None, divisors: Array | None, long_divisors: Array | None,
         length: Array | None, theta: float | None, dim: int, interleaved: bool, scaling: Any, magnitude: float) -> Array:
    if freqs is None:
        if scaling is not None:
            raise Internal("R003", f"rope scaling {scaling.kind} means what fold-rope says; there is no second meaning")
        freqs = float(theta or 0) ** -(np.arange(0, dim, 2) / dim) / (1 if divisors is None else divisors)
    angle = positions[:, :, None, None] * (freqs if freqs.ndim == 1 else freqs[:, None, None])
    return turn(x, np.cos(angle) * magnitude, np.sin(angle) * magnitude, interleaved)


@means(ops.DynamicFreqs)
def dynamic_freqs(positions: Array, theta: float, dim: int, factor: float, max_positions: int) -> Array:
    length = max(int(positions.max()) + 1, max_positions)
    base = theta * (factor * length / max_positions - (factor - 1)) ** (dim / (dim - 2))
    return base ** -(np.arange(0, dim, 2) / dim)


@means(ops.LengthFreqs)
def length_freqs(positions: Array, length: Array, table: Array, limit: int) -> Array:
    first, count = positions.min(1), positions.max(1) + 1
    if ((first > 0) & (first <= limit) & (count > limit) & (length <= limit)).any():
        raise Internal("R005", f"keys cached for at most {limit} tokens do not go on past them")
    return table[(np.maximum(count, length) > limit).astype(int)]


@means(ops.RopeTable)
def rope_table(positions: Array, freqs: Array, magnitude: float) -> tuple[Array, Array]:
    angle = positions[..., None] * (freqs if freqs.ndim == 1 else freqs[:, None])
    return np.cos(angle) * magnitude, np.sin(angle) * magnitude


@means(ops.Rotary)
def rotary(x: Array, cos: Array, sin: Array, heads: int, interleaved: bool) -> Array:
    return merge_heads(turn(split_heads(x, heads), cos[:, :, None], sin[:, :, None], interleaved))


@means(ops.Attention)
def attention(q: Array, k: Array, v: Array, past_k: Array, past_v: Array, mask: Array, scale: float, softcap: float,
              window: int, sinks: Array | None) -> tuple[Array, Array, Array]:
    k = np.concatenate([past_k, k.swapaxes(1, 2)], 2)
    v = np.concatenate([past_v, v.swapaxes(1, 2)], 2)
    group = q.shape[2] // k.shape[1]
    score = q.swapaxes(1, 2) @ k.repeat(group, 1).swapaxes(-1, -2) * scale
    if softcap:
        score = softcap * np.tanh(score / softcap)
    at, to = np.arange(q.shape[1])[:, None] + past_k.shape[2], np.arange(k.shape[2])
    sees = (to <= at) & ((at - to < window) if window else True)
    score = np.where(sees & (mask[:, None, None, :] != 0), score, -np.inf)
    sink = np.full((1, 1, 1), -np.inf) if sinks is None else sinks[:, None, None]
    top = np.maximum(score.max(-1, keepdims=True), sink)
    p = np.exp(score - top)
    y = (p / (p.sum(-1, keepdims=True) + np.exp(sink - top))) @ v.repeat(group, 1)
    return y.swapaxes(1, 2).reshape(q.shape[0], q.shape[1], -1), k, v


@means(ops.SkipRmsNorm)
def skip_rms_norm(a: Array, b: Array, weight: Array, eps: float) -> tuple[Array, Array]:
    return rms_norm(a + b, weight, eps, 0.0), a + b


@means(ops.Halves)
def halves(x: Array) -> tuple[Array, Array]:
    first, second = np.split(x, 2, axis=-1)
    return first, second


@means(ops.Cut)
def cut(x: Array, at: int) -> tuple[Array, Array]:
    return x[..., :at], x[..., at:]


@means(ops.FlatRows)
def flat_rows(x: Array) -> Array:
    return x.reshape(-1, *x.shape[2:])


@means(ops.GridShape)
def grid_shape(like: Array, rest: tuple[int, ...]) -> Array:
    return np.array([*like.shape[:2], *rest])


@means(ops.GridRows)
def grid_rows(x: Array, shape: Array) -> Array:
    return x.reshape(shape)


@means(ops.Gemm, "weight")
def gemm(y: Array, x: Array, weight: Array) -> Array:
    return y + linear(x, weight, None)


def int8(x: Array, block: int) -> Array:
    """x as a kernel of accuracy level 4 sees it: each block rounded to int8 by its largest magnitude over 127 (mlas)."""
    blocks = x.reshape(*x.shape[:-1], -1, block)
    scale = np.maximum(np.abs(blocks).max(-1, keepdims=True), 1e-300) / 127
    rounded: Array = np.rint(blocks / scale) * scale
    return rounded.reshape(x.shape)


def _unpack(quants: Array, bits: int) -> Array:
    """u8 [..., bytes], low bits first, to signed integers around 2^(bits-1)."""
    fields = [(quants >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(fields, -1).reshape(*quants.shape[:-1], -1).astype(np.float64) - (1 << (bits - 1))


@means(ops.MatMulNBits, "quants", "scales")
def matmul_nbits(x: Array, quants: Array, scales: Array, bias: Array | None, bits: int, block: int,
                 int8_activations: bool, rounded: bool = False) -> Array:
    x = int8(x, block) if rounded else x

    def rows(at: slice) -> Array:
        return (_unpack(quants[at], bits) * scales[at][..., None]).reshape(-1, x.shape[-1])
    return _product(x, rows, len(quants)) + (0 if bias is None else bias)


@means(ops.EmbeddingNBits, "quants", "scales")
def embedding_nbits(ids: Array, quants: Array, scales: Array, bits: int, block: int) -> Array:
    return _unpack(quants[ids], bits) * scales[ids].repeat(block, -1)


@means(ops.BlockSum)
def block_sum(x: Array, block: int) -> Array:
    return x.reshape(*x.shape[:-1], -1, block).sum(-1)


@means(ops.BlockSpread)
def block_spread(x: Array, block: int) -> Array:
    return x.repeat(block, -1)


@means(ops.KeyLengths)
def key_lengths(mask: Array, start: Array | None) -> Array:
    return mask.sum(1) - 1 - (0 if start is None else start)


@means(ops.TotalLength)
def total_length(mask: Array, start: Array | None) -> Array:
    return np.int64(mask.shape[1]) - (0 if start is None else start)


@means(ops.Gqa)
def gqa(q: Array, k: Array | None, v: Array | None, past_k: Array, past_v: Array, lengths: Array, total: Array,
        cos: Array | None, sin: Array | None, sinks: Array | None, positions: Array | None, heads: int, kv_heads: int,
        scale: float, softcap: float, window: int, interleaved: bool) -> tuple[Array, Array, Array]:
    """Rows without padding only: the kernel's placement of padded rows is its own."""
    if not (np.asarray(lengths) + 1 == total).all():
        raise Internal("R004", "the reference has no padded rows for gqa")
    d = past_k.shape[3]
    if k is None or v is None:
        q, k, v = np.split(q, [heads * d, (heads + kv_heads) * d], axis=-1)
    q, k, v = split_heads(q, heads), split_heads(k, kv_heads), split_heads(v, kv_heads)
    if cos is not None and sin is not None:
        at = np.arange(past_k.shape[2], int(total))[None] if positions is None else positions
        q, k = (turn(t, cos[at][:, :, None], sin[at][:, :, None], interleaved) for t in (q, k))
    mask = np.ones((q.shape[0], int(total)))
    attended: tuple[Array, Array, Array] = attention(q, k, v, past_k, past_v, mask, scale, softcap, window, sinks)
    return attended


def biased_scores(logits: Array, correction: Array | None, r: ops.Routed) -> tuple[Array, Array]:
    """The scores of all experts [...,X], and what they are chosen by: minus infinity outside the groups that stay."""
    e = np.exp(logits - logits.max(-1, keepdims=True))
    scores = e / e.sum(-1, keepdims=True) if r.scores == "softmax" else 1 / (1 + np.exp(-logits))
    biased = scores if correction is None else scores + correction
    if r.groups > 1:
        runs = biased.reshape(*biased.shape[:-1], r.groups, -1)
        best = np.sort(runs, -1)[..., -(1 if r.group_score == "max" else 2):].sum(-1)
        floor = np.sort(best, -1)[..., -r.groups_used, None]
        biased = np.where((best >= floor)[..., None], runs, -np.inf).reshape(biased.shape)
    return scores, biased


def route(logits: Array, correction: Array | None, r: ops.Routed) -> Array:
    """The weight of every expert [...,X], 0 for those not chosen."""
    scores, biased = biased_scores(logits, correction, r)
    chosen = biased >= np.sort(biased, -1)[..., -r.top_k, None]
    w = np.where(chosen, scores, 0)
    return w / (np.maximum(w.sum(-1, keepdims=True), r.floor) if r.renormalise else 1) * r.scale


def _experts(x: Array, logits: Array, correction: Array | None, r: ops.Routed, expert: Callable[[int], Array],
             rounded: tuple[int, int] | None = None) -> Array:
    """The shares of the experts that some token chose. `expert` has the matrices of one: (weight, bias) of gate, up, down.
    `rounded` has the blocks in which the two activations are rounded to int8."""
    shares, out = route(logits, correction, r), np.zeros_like(x)
    x = int8(x, rounded[0]) if rounded else x
    for e in np.flatnonzero(shares.reshape(-1, shares.shape[-1]).any(0)).tolist():
        gate, up, down = expert(e)
        g, u = linear(x, *gate), linear(x, *up)
        if r.limit:
            g, u = np.minimum(g, r.limit), np.clip(u, -r.limit, r.limit)
        h = (u + r.beta) * g * (1 + np.tanh(r.alpha * g / 2)) / 2
        h = int8(h, rounded[1]) if rounded else h
        out = out + shares[..., e, None] * linear(h, *down)
    return out


@means(ops.MixtureOfExperts, "gate", "up", "down")
def mixture_of_experts(x: Array, logits: Array, gate: Array, up: Array, down: Array, correction: Array | None,
                       gate_bias: Array | None, up_bias: Array | None, down_bias: Array | None, **how: Any) -> Array:
    halves = ((gate, gate_bias), (up, up_bias), (down, down_bias))
    return _experts(x, logits, correction, ops.Routed(**how), lambda e: [(w[e], None if b is None else b[e]) for w, b in halves])


@means(ops.ExpertKernel, "fc1", "fc2", "fc1_scales", "fc2_scales")
def expert_kernel(x: Array, logits: Array, fc1: Array, fc2: Array, fc1_scales: Array | None, fc2_scales: Array | None,
                  correction: Array | None, fc1_bias: Array | None, fc2_bias: Array | None, bits: int, block: int,
                  int8_activations: bool, rounded: bool = False, **how: Any) -> Array:
    def expert(e: int) -> Array:
        both, down = (w[e] if s is None else _unpack(w[e], bits) * s[e].repeat(block, -1)
                      for w, s in ((fc1, fc1_scales), (fc2, fc2_scales)))
        gate_bias, up_bias = (None, None) if fc1_bias is None else (fc1_bias[e, 0::2], fc1_bias[e, 1::2])
        return (both[0::2], gate_bias), (both[1::2], up_bias), (down, None if fc2_bias is None else fc2_bias[e])
    return _experts(x, logits, correction, ops.Routed(**how), expert, (block, block) if rounded else None)


@means(ops.ExpertBranches, "fc1", "fc1_scales", "fc1_offsets", "fc2", "fc2_scales", "fc2_offsets")
def expert_branches(x: Array, logits: Array, fc1: Array, fc1_scales: Array, fc2: Array, fc2_scales: Array,
                    fc1_offsets: Array | None, fc2_offsets: Array | None, correction: Array | None, fc1_bias: Array | None,
                    fc2_bias: Array | None, bits1: int, block1: int, bits2: int, block2: int, int8_activations: bool,
                    rounded: bool = False, **how: Any) -> Array:
    def expert(e: int) -> Array:
        both, down = ((_unpack(q[e], bits) * s[e][..., None] + (0 if o is None else o[e][..., None])).reshape(q.shape[1], -1)
                      for q, s, o, bits in ((fc1, fc1_scales, fc1_offsets, bits1), (fc2, fc2_scales, fc2_offsets, bits2)))
        gate_bias, up_bias = (None, None) if fc1_bias is None else np.split(fc1_bias[e], 2)
        gate, up = np.split(both, 2)
        return (gate, gate_bias), (up, up_bias), (down, None if fc2_bias is None else fc2_bias[e])
    return _experts(x, logits, correction, ops.Routed(**how), expert, (block1, block2) if rounded else None)


@means(ops.LatentAttention)
def latent_attention(q_plain: Array, q_turned: Array, latent: Array, k_turned: Array, k_up: Array, v_up: Array, past: Array,
                     past_v: Array, mask: Array, scale: float) -> tuple[Array, Array, Array]:
    """Every head's keys and values written out."""
    rows = np.concatenate([past, np.concatenate([latent[:, None], k_turned.swapaxes(1, 2)], -1)], 2)
    c = latent.shape[-1]
    k = np.concatenate([rows[..., :c] @ k_up.swapaxes(1, 2), rows[..., c:].repeat(len(k_up), 1)], -1)
    v = rows[..., :c] @ v_up.swapaxes(1, 2)
    score = np.concatenate([q_plain, q_turned], -1).swapaxes(1, 2) @ k.swapaxes(-1, -2) * scale
    at, to = np.arange(latent.shape[1])[:, None] + past.shape[2], np.arange(rows.shape[2])
    score = np.where((to <= at) & (mask[:, None, None, :] != 0), score, -np.inf)
    p = np.exp(score - score.max(-1, keepdims=True))
    y = (p / p.sum(-1, keepdims=True)) @ v
    return y.swapaxes(1, 2).reshape(*latent.shape[:2], -1), rows, rows


@means(ops.LatentGqa)
def latent_gqa(q_plain: Array, q_turned: Array, latent: Array, k_turned: Array, k_up: Array, v_up: Array, past: Array,
               past_v: Array, lengths: Array, total: Array, scale: float) -> tuple[Array, Array, Array]:
    """Absorbed at any length, through the attention of one key head; rows without padding only."""
    asked = np.concatenate([np.einsum("bshn,hnc->bshc", q_plain, k_up), q_turned], -1)
    row = np.concatenate([latent[:, :, None], k_turned], -1)
    got, rows, _ = gqa(merge_heads(asked), merge_heads(row), merge_heads(row), past, past, lengths, total, None, None, None, None,
                       asked.shape[2], 1, scale, 0.0, 0, False)
    heads = split_heads(got, asked.shape[2])[..., :latent.shape[-1]]
    return merge_heads(np.einsum("bshc,hvc->bshv", heads, v_up)), rows, rows
