"""The tables of docs/huggingface_support.md and docs/gguf_support.md, made from the family declarations.

`python -m uaii.support docs` rewrites what stands between the markers; a test demands that it is current.
"""
from __future__ import annotations

import re
import sys
from pathlib import Path

from uaii.frontend.blocks import ACT_NAMES
from uaii.frontend.config import Config
from uaii.frontend.family import Family, registry
from uaii.frontend.rope import PARAMS
from uaii.ir.types import BLOCKS, PACKINGS

MARK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.S)


def families() -> list[Family]:
    """Every family once, by name."""
    by_type, by_class, by_gguf = registry()
    return sorted({f.name: f for t in (by_type, by_class, by_gguf) for f in t.values()}.values(), key=lambda f: f.name)


def keys(config: type[Config], fmt: str) -> list[str]:
    """The keys that a configuration reads from a checkpoint of this format."""
    return sorted({k for e in config.declared().values() for k in e.keys(fmt)})


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def huggingface() -> str:
    """Families by model_type."""
    return _table(["family", "model_type", "class", "models", "config keys read"], [
        [f.name, ", ".join(f"`{t}`" for t, _ in f.hf), ", ".join(f"`{k}`" for _, k in f.hf), ", ".join(f.brands),
         " ".join(f"`{k}`" for k in keys(f.config, "hf"))] for f in families() if f.hf])


def gguf() -> str:
    """Families by general.architecture."""
    return _table(["family", "general.architecture", "models", "metadata keys read (after the architecture's name)"], [
        [f.name, ", ".join(f"`{a}`" for a in f.gguf), ", ".join(f.brands), " ".join(f"`{k}`" for k in keys(f.config, "gguf"))]
        for f in families() if f.gguf])


def blocks() -> str:
    """How each ggml block layout is held."""
    return _table(["type", "values that share a scale", "kernel bits", "beyond the kernel"], [
        [name.upper(), str(how.size), str(how.bits), "block sums of x times offsets" if how.affine else ""]
        for name, how in PACKINGS.items() if name in BLOCKS])


def rope() -> str:
    """Rotation types and their parameters."""
    return _table(["rope type", "parameters"], [[f"`{k}`", ", ".join(f"`{p}`" for p in ps)] for k, ps in PARAMS.items()])


def activations() -> str:
    """Activation names and what they mean here."""
    return _table(["name", "computed as"], [[f"`{k}`", f"`{v}`"] for k, v in ACT_NAMES.items()])


TABLES = {"huggingface": huggingface, "gguf": gguf, "blocks": blocks, "rope": rope, "activations": activations}


def filled(text: str) -> str:
    """A page with every marked table made anew."""
    return MARK.sub(lambda m: f"{m[1]}{TABLES[m[2]]()}{m[3]}", text)


if __name__ == "__main__":
    for page in sorted(Path(sys.argv[1]).glob("*_support.md")):
        page.write_text(filled(page.read_text("utf-8")), "utf-8")
