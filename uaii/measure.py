"""What a graph costs: bytes on disk, weight bytes read for a token, cache bytes kept for a token."""
from __future__ import annotations

from uaii.backends.reference import BY_ROWS
from uaii.backends.rows import held
from uaii.ir.core import Graph, Op, Weight
from uaii.ir.diag import Unsupported
from uaii.ir.memory import available_bytes, size
from uaii.ir.ops import Embedding, EmbeddingNBits, Gqa, LatentAttention, LatentGqa, Routed
from uaii.ir.recipe import COMPUTED
from uaii.ir.types import WIDTHS

# Operands of which a decoding step reads one row, not the whole.
LOOKED_UP: dict[type[Op], tuple[str, ...]] = {
    Embedding: ("table",), EmbeddingNBits: ("quants", "scales"), Gqa: ("cos", "sin"),
}


def read_per_token(graph: Graph) -> int:
    """Weight bytes that one decoding step reads, each weight once; of a lookup table one row, of experts those a token takes."""
    most: dict[Weight, int] = {}
    for op in graph.ops:
        rows = LOOKED_UP.get(type(op), ())
        for n in op.operand_names:
            w = getattr(op, n)
            if isinstance(w, Weight):
                count = w.type.sizes[0] if w.type.sizes else 1
                taken = 1 if n in rows else op.top_k if isinstance(op, Routed) and n != "correction" else count
                nbytes = w.type.nbytes * taken // count
                most[w] = max(most.get(w, 0), nbytes)
    return sum(most.values())


def stored(graph: Graph) -> int:
    """Bytes of all weights together; views of another weight's bytes and what is computed at load cost nothing."""
    return sum(w.type.nbytes for w in graph.weights.values() if w.recipe.op not in ("view", *COMPUTED))


def loaded(graph: Graph) -> int:
    """Bytes that a session holds of the weights: what is stored, and the tables that are computed when it loads."""
    return stored(graph) + sum(w.type.nbytes for w in graph.weights.values() if w.recipe.op in COMPUTED)


def fits_memory(graph: Graph) -> None:
    """Raises Unsupported C402 when one weight is larger than the memory of this process: a run holds each whole."""
    total, _ = available_bytes()
    made = [w for w in graph.weights.values() if w.recipe.op not in ("view", *COMPUTED)]
    largest = max(made, key=lambda w: w.type.nbytes, default=None)
    if largest is not None and 0 < total < largest.type.nbytes:
        raise Unsupported("C402", f"weight {largest.name} is {size(largest.type.nbytes)} which exceeds the memory of this "
                          f"process, {size(total)}", largest.loc, why="a run holds every weight in memory",
                          hint="use a quantized GGUF, --weights int8 or int4, or a machine with more memory")


def fits_reference(graph: Graph) -> None:
    """Raises Unsupported C403 when the reference cannot hold what one op takes of its weights, in f64."""
    total, _ = available_bytes()
    needs = [(sum(held(w, n in BY_ROWS[type(op)]) for n in op.operand_names if isinstance(w := getattr(op, n), Weight)), op)
             for op in graph.ops]
    most, op = max(needs, key=lambda need: need[0])
    if 0 < total < most:
        w = max((v for v in op.operands if isinstance(v, Weight)), key=lambda v: v.type.count)
        raise Unsupported("C403", f"the reference needs {size(most)} for weight {w.name}, which exceeds the memory of this "
                          f"process, {size(total)}", w.loc, why="what an op takes of its weights is computed in f64",
                          hint="verify on a machine with more memory")


def cache_per_token(graph: Graph) -> int:
    """Bytes that the cache keeps for one token of one sequence: every input that is P long, without that axis, latent rows
    once."""
    total, same = 0, {op.past_v for op in graph.ops if isinstance(op, LatentAttention | LatentGqa)}
    for v in graph.inputs:
        if "P" in v.type.shape and v not in same:
            count = 1
            for d in v.type.shape:
                count *= d if isinstance(d, int) else 1
            total += count * WIDTHS[v.type.elem]
    return total
