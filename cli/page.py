"""An explanation as one HTML page that needs nothing else; every text in it is escaped."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from uaii.ir.memory import size

if TYPE_CHECKING:
    from uaii.explanation import Explanation

STYLE = """body{font:14px/1.4 sans-serif;margin:2em;max-width:100em}table{border-collapse:collapse;margin:.5em 0 2em}
td,th{border:1px solid #ccc;padding:.2em .5em;text-align:left;vertical-align:top}th{background:#eee;position:sticky;top:0}
td{font-family:monospace;white-space:pre-wrap;overflow-wrap:anywhere}.error{background:#fdd;padding:1em;white-space:pre-wrap}"""


def page(e: Explanation) -> str:
    """Summary, pipeline, accounts of keys and tensors, journal and nodes."""
    from uaii.explanation import lost

    r = e.record
    title = escape(f"{r['family']} explained")
    parts = ["<!doctype html>", f'<html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>',
             f"<h1>{title}</h1>"]
    parts += [f'<pre class="error">{escape(str(e.stopped))}</pre>'] if e.stopped else []
    parts.append(_table("Summary", ("fact", "value"), [(k, v) for k, v in e.summary().items() if v is not None]))
    parts.append(_table("Pipeline", ("stage", "pass", "applied", "declined", "ops before", "ops", "read per token", "why"), [
        (s["stage"], s["pass_"], s["applied"], s["declined"], s["ops_before"], s["ops"], size(s["read_per_token"]), s["why"])
        for s in r["pipeline"]]))
    parts.append(_table("Config keys", ("key", "value", "use", "by"), [(a["key"], a["value"], a["use"], a["by"])
                                                                      for a in r["account"]]))
    parts.append(_table("Tensors", ("tensor", "stored", "bytes", "use", "held", "error", "initializers"), [
        (t["tensor"], t["stored"], t["bytes"], t["use"], t["held"], lost(t), _list(t["initializers"])) for t in r["tensors"]]))
    parts.append(_table("Journal", ("pass", "applied", "says", "count", "places"), _journal(r["journal"])))
    parts.append(_table("Nodes", ("node", "op", "attributes", "reads", "passes", "from"), [
        (name, o["op"], _list(f"{k} = {a['value']}" + "".join(f"\n  {x}" for x in a["from"]) for k, a in o["attrs"].items()),
         _list(f"@{w} = {r['weights'][w]['recipe']}" for w in o["reads"]), _list(o["passes"]), _list(o["from"]))
        for name, o in r["origins"].items()]))
    return "\n".join(parts) + "</html>\n"


def _journal(entries: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    """Equal answers of one pass on one line, with their places."""
    counts = Counter((x["pass_"], x["applied"], x["says"]) for x in entries)
    places: dict[tuple[object, ...], list[str]] = {}
    for x in entries:
        places.setdefault((x["pass_"], x["applied"], x["says"]), []).append(x["at"])
    return [(p, "yes" if done else "no", says, n, ", ".join(filter(None, places[p, done, says])))
            for (p, done, says), n in counts.items()]


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(c)}</th>" for c in columns)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(str(c))}</td>" for c in row) + "</tr>" for row in rows)
    return f"<h2>{escape(title)}</h2>\n<table><tr>{head}</tr>\n{body}</table>"


def _list(texts: Iterable[str]) -> str:
    return "\n".join(texts)
