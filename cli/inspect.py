"""`uaii inspect MODEL`: what a checkpoint is, and what would block it."""
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from uaii.cli.compile import ACCEPT, CONTEXT, TARGET, WEIGHTS
from uaii.cli.shell import FORMAT, data, guarded
from uaii.ir.memory import size

if TYPE_CHECKING:
    from uaii.inspection import Report

BYTES = ("weight_bytes", "artifact_bytes", "ram_to_load_bytes", "read_bytes_per_token", "kv_bytes_per_token")


@click.command()
@click.argument("model", type=click.Path())
@TARGET
@WEIGHTS
@CONTEXT
@ACCEPT
@FORMAT
@guarded
def main(model: str, target: str, weights: str, context: int | None, accept: tuple[str, ...], fmt: str) -> None:
    """Report on MODEL (a folder or a .gguf file) from its headers: facts, the four gates, and status.

    The exit code is that of the error a compile would raise.
    """
    from uaii.inspection import inspect

    report = inspect(model, target=target, weights=weights, context=context, accept=accept)
    if fmt == "json":
        data(report.record())
    else:
        click.echo("\n".join(lines(report)))
    sys.exit(report.exit_code)


def lines(r: Report) -> list[str]:
    """The report, one fact a line: `name=value`, then `gate: what (state)`, then status or what blocks."""
    out = [f"family={r.family}"] + [f"{k}={_text(v)}" for k, v in (
        ("format", r.format), ("architecture", r.architecture), ("layout", r.layout))]
    for name, value in r.facts.items():
        if name == "experts_held" and value is None:
            continue
        out += _rope(value) if name == "rope" else [f"{name}={_fact(name, value)}"]
    t = r.tokenizer
    out += [f"tokenizer={t['kind']} of {t['size']} tokens" if t else "tokenizer=none",
            f"chat_template={_text(t.get('chat_template', False))}"]
    for name, gate in r.gates.items():
        out.append(f"{name}: {gate.says} ({gate.state})" if gate.says else f"{name}: ({gate.state})")
    out += [f"note: {note}" for note in r.notes]
    if r.ok:
        return [*out, "status: ok"]
    for b in r.blockers:
        head, *rest = str(b).split("\n")
        out += [f"blocked: {b.says}", f"   = code: {b.code}", *rest] if head.endswith(b.says) else [f"blocked: {b.says}"]
    return out


def _fact(name: str, value: Any) -> str:
    if name in BYTES and value is not None:
        return f"{value} ({size(value)})"
    if name == "latent_attention":
        return f"{value['latent']} + {value['rotated']} numbers of a token in each layer"
    if name == "moe" and value:
        counts = (f"{n} experts" if k == "experts" else f"{n} for each token" if k == "experts_used" else f"{k}={n}"
                  for k, n in value.items())
        return ", ".join(counts)
    if name == "moe":
        return "no"
    if name == "sliding_window" and value is not None:
        return ", ".join(f"{w} tokens" + (f" in {n} layers" if n else "") for w, n in value.items()) or "none"
    if name == "dtypes":
        return ", ".join(f"{k} x{n}" for k, n in value.items()) or "none"
    return _text(value)


def _rope(ropes: list[dict[str, Any]]) -> list[str]:
    out = []
    for r in ropes:
        parts = [r["kind"]] + [f"{k} of {len(v)}" if isinstance(v, tuple) else f"{k} {v}" for k, v in r["parameters"].items()]
        parts += [f"divided by tensor {n}" for n in r["divided_by"]] + ([f"{r['layers']} layers"] if r["layers"] else [])
        out += [f"rope={', '.join(parts)}", f"rope_base={_text(r['base'])} ({', '.join(r['from'])})"]
    return out or ["rope=none", "rope_base=none"]


def _text(value: Any) -> str:
    if value is None:
        return "unknown"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
