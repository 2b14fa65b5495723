"""`uaii-explain MODEL_OR_ARTIFACT [NODE]`: what each pass did and why, and where each node came from."""
from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from uaii.cli.compile import ACCEPT, CONTEXT, TARGET, WEIGHTS
from uaii.cli.shell import FORMAT, data, guarded, talk
from uaii.cli.table import pairs, table
from uaii.ir.diag import Usage
from uaii.ir.loc import File
from uaii.ir.memory import size

if TYPE_CHECKING:
    from uaii.explanation import Explanation

COMPILE = {"target": "--target", "weights": "--weights", "context": "--context", "accept": "--accept-key"}
Shown = dict[str, Any]


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("node", required=False)
@click.option("--ir-after", metavar="PASS", help="The IR after that pass; `lower` is the model as it was read.")
@click.option("--locs", is_flag=True, help="With --ir-after: the origin of every op and weight too.")
@click.option("--diff", metavar="PASS", help="Unified diff of the IR before and after that pass.")
@click.option("--why-not", metavar="PASS", help="Where that pass declined, and for which reasons.")
@click.option("--account", is_flag=True, help="Every config key and stored tensor: used where, or left out why.")
@click.option("--dot", type=click.Path(path_type=Path), metavar="FILE", help="Write the last graph as Graphviz text.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write everything as one page.")
@TARGET
@WEIGHTS
@CONTEXT
@ACCEPT
@FORMAT
@click.pass_context
@guarded
def main(ctx: click.Context, /, model: Path, node: str | None, ir_after: str | None, locs: bool, diff: str | None,
         why_not: str | None, account: bool, dot: Path | None, html: Path | None, fmt: str, **options: Any) -> None:
    """Explain a compile of MODEL (a checkpoint or an artifact), or where NODE came from.

    NODE is a value (%0.attn.qkv), a weight (@0.attn_norm), an ONNX node name or a stored tensor. No weights are read.
    """
    from uaii.explanation import explain, is_artifact
    from uaii.provenance import provenance

    if locs and not ir_after:
        raise Usage("U044", "--locs belongs to --ir-after", hint="for example --ir-after lower --locs")
    given = [flag for name, flag in COMPILE.items() if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT]
    if given and is_artifact(model):
        raise Usage("U044", f"{given[0]} is of a compile, and {model} is compiled already", File(str(model)),
                    hint="leave it out, or give the checkpoint")
    e = explain(model, **options)
    shown: Shown = {}
    shown |= {"node": provenance(e, node)} if node is not None else {}
    shown |= {"ir": e.ir(ir_after, locs)} if ir_after else {}
    shown |= {"diff": e.diff(diff)} if diff else {}
    shown |= {"why_not": e.why_not(why_not)} if why_not else {}
    shown |= {k: e.record[k] for k in ("account", "tensors")} if account else {}
    written = [_write(dot, e.dot())] if dot else []
    written += [_write(html, _page(e))] if html else []
    if not shown and not written:
        shown = {"pipeline": e.record["pipeline"], "summary": e.summary()}
    if fmt == "json":
        data(shown | ({"error": e.stopped.record()} if e.stopped else {}) | ({"written": written} if written else {}))
    else:
        _print(shown)
        for text in (*e.notes, *(f"wrote {w}" for w in written)):
            talk.print(text, markup=False)
    if e.stopped is not None:
        print(e.stopped, file=sys.stderr)
        sys.exit(e.stopped.exit_code)


def _page(e: Explanation) -> str:
    from uaii.cli.page import page
    return page(e)


def _write(path: Path, text: str) -> str:
    try:
        path.write_text(text, "utf-8", errors="backslashreplace")
    except OSError as err:
        raise Usage("U045", f"cannot write {path}: {err.strerror}", File(str(path)), hint="choose another place") from None
    return str(path)


def _print(shown: Shown) -> None:
    printers: dict[str, Callable[[Any], None]] = {
        "node": _node, "ir": _raw, "diff": _raw, "why_not": _why_not, "account": _account, "tensors": _tensors,
        "pipeline": _pipeline, "summary": _summary}
    for i, (name, value) in enumerate(shown.items()):
        click.echo("" if not i else "\n", nl=False)
        printers[name](value)


def _raw(text: str) -> None:
    click.echo(text, nl=False)


def _pipeline(steps: list[dict[str, Any]]) -> None:
    read, rows = "", []
    for s in steps:
        ops = str(s["ops"]) if s["ops_before"] in (0, s["ops"]) else f"{s['ops_before']} -> {s['ops']}"
        now = size(s["read_per_token"])
        changed, read = now if now != read else "", now
        rows.append((s["stage"], s["pass_"], s["applied"], s["declined"], ops, changed, s["why"]))
    table(("stage", "pass", "applied", "declined", "ops", "read/token", "why"), rows,
          right=("applied", "declined", "ops", "read/token"))


def _summary(facts: dict[str, Any]) -> None:
    sized = {k: f"{v} ({size(v)})" for k, v in facts.items() if k in ("bytes_in", "bytes_out", "read_per_token", "kv_per_token")}
    pairs([(k, sized.get(k, v)) for k, v in facts.items() if v is not None])


def _account(rows: list[dict[str, Any]]) -> None:
    table(("key", "use", "by", "value"), [(r["key"], r["use"], r["by"], r["value"]) for r in rows])


def _tensors(rows: list[dict[str, Any]]) -> None:
    from uaii.explanation import lost

    table(("tensor", "stored", "bytes", "use", "held", "packing", "exact", "error", "initializers"),
          [(r["tensor"], r["stored"], r["bytes"], r["use"], r["held"], r.get("packing") or "", "yes" if r["exact"] else "no",
            lost(r), ", ".join(r["initializers"])) for r in rows], right=("bytes",))


def _why_not(groups: list[dict[str, Any]]) -> None:
    if not groups:
        click.echo("declined nowhere")
        return
    table(("count", "reason", "places"), [(g["count"], g["says"], ", ".join(p or "the model" for p in g["at"])) for g in groups],
          right=("count",))


def _node(n: dict[str, Any]) -> None:
    """One fact a line, the name of the fact first."""
    from uaii.explanation import lost

    lines: list[tuple[str, object]] = [("name", n["name"]), ("kind", n["kind"])]
    lines += [(k, n[k]) for k in ("op", "type", "recipe", "stored", "bytes", "held", "use", "gone_after") if n.get(k) is not None]
    lines += [("error", lost(n))] if n.get("held") == "quantised" else []
    lines += [("result", r) for r in n.get("results", ())]
    lines += [("operand", f"{k} = {v}") for k, v in n.get("operands", {}).items()]
    for k, a in n.get("attrs", {}).items():
        lines.append(("attribute", f"{k} = {a['value']}  ({', '.join(a['from']) or 'from the shapes or a pass'})"))
    lines += [("pass", f"{p['pass']}: {p['why']}") for p in n.get("passes", ())]
    for w in n.get("reads", ()):
        lines.append(("reads", f"{w['name']} : {w['type']} = {w['recipe']}"))
        lines += [("tensor", t) for t in w["tensors"]]
    lines += [("tensor", t) for t in n.get("tensors", ())]
    lines += [("from", f) for f in n.get("from", ())]
    lines += [("node", x) for x in (*n.get("nodes", ()), *n.get("read_by", ()))]
    lines += [("initializer", x) for x in n.get("initializers", ())]
    lines += [(f"after {h['after']}", h["text"]) for h in n.get("history", ())]
    pairs(lines)
