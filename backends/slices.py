"""Cuts a recipe along its first axis, so that a stack of experts is read and written a few experts at a time."""
from __future__ import annotations

from collections.abc import Iterator

from uaii.ir.recipe import Recipe, make

LARGE = 32 << 20  # bytes of a result, or of what it is computed from, beyond which it is made in slices
# Recipes that treat each element of the first axis alone (a transpose does from rank 3 on).
ALIKE = ("cast", "add", "scale", "mxfp4", "quantise", "dequant", "quants", "scales", "offsets", "transpose", "every",
         "interleave", "join", "spread")


def slices(recipe: Recipe) -> Iterator[Recipe]:
    """The recipe in consecutive slices of its first axis, of which nothing computed on the way is much more than LARGE; whole
    where it is small or cannot be cut."""
    count = recipe.type.sizes[0] if recipe.type.rank else 1
    step = max(1, count * LARGE // max(1, *(p.type.nbytes for p in recipe.parts)))
    if step >= count or not divides(recipe):
        yield recipe
        return
    for start in range(0, count, step):
        yield part(recipe, start, min(start + step, count))


def part(recipe: Recipe, start: int, stop: int) -> Recipe:
    """recipe[start:stop] of a recipe that can be cut, as a recipe that reads only what it needs."""
    if recipe.op == "stack":
        return make("stack", *recipe.args[start:stop])
    if recipe.op == "concat":
        return _of_parts(recipe, start, stop)
    if recipe.op == "reshape":
        x, shape = recipe.args
        return make("reshape", part(x, start, stop), (stop - start, *shape[1:]))
    if recipe.op in ALIKE:
        return make(recipe.op, *(part(a, start, stop) if isinstance(a, Recipe) else a for a in recipe.args))
    return make("rows", recipe, start, stop)


def _of_parts(recipe: Recipe, start: int, stop: int) -> Recipe:
    """Rows of a concatenation: of the parts that they lie in."""
    pieces, at = list[Recipe](), 0
    for one in recipe.args:
        count = one.type.sizes[0]
        low, high = max(start - at, 0), min(stop - at, count)
        if low < high:
            pieces.append(one if high - low == count else part(one, low, high))
        at += count
    return pieces[0] if len(pieces) == 1 else make("concat", *pieces)


def divides(recipe: Recipe) -> bool:
    """Whether every step from the stored tensors keeps the first axis."""
    if recipe.op in ("load", "stack"):
        return True
    if recipe.op == "concat":
        return all(map(divides, recipe.args))
    if recipe.op == "reshape":
        x, shape = recipe.args
        return bool(x.type.rank > 2 and shape[0] == x.type.sizes[0]) and divides(x)
    if recipe.op == "transpose" and recipe.type.rank == 2:
        return False
    return recipe.op in ALIKE and all(a.type.rank > 1 and divides(a) for a in recipe.args if isinstance(a, Recipe))
