"""The roofline and the cost of context as a picture."""
from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from uaii.ir.diag import Unsupported, Usage
from uaii.ir.loc import File


def drawer() -> Any:
    """matplotlib's Figure. Raises Unsupported U063 when it is not installed."""
    try:
        return import_module("matplotlib.figure").Figure
    except ImportError as err:
        raise Unsupported("U063", f"--plot needs matplotlib: {err}", hint='pip install "uaii[plot]"') from None


def plot(record: dict[str, Any], file: Path) -> None:
    """Writes decode speed against bytes a token under the memory's limit, and time a token and prefill speed against context;
    the suffix chooses the form (png, svg, pdf). Raises Unsupported U063, Usage U062."""
    figure = drawer()(figsize=(15, 4.5), layout="constrained")
    roof, decode, prefill = figure.subplots(1, 3)
    _roofline(roof, record)
    for row in record["summary"]:
        if not row["contexts"]:
            continue
        at = [c["context"] for c in row["contexts"]]
        label = f"{row['peer']}, {row['threads']} thread{'s' * (row['threads'] > 1)}"
        decode.plot(at, [1e3 * c["step_seconds"] for c in row["contexts"]], marker="o", label=label)
        prefill.plot(at, [c["fill_tokens_per_second"] for c in row["contexts"]], marker="o", label=label)
    for axes, title, y in ((decode, "decode", "ms a token"), (prefill, "prefill up to the context", "tokens a second")):
        axes.set(title=title, xlabel="context in tokens", ylabel=y)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        if axes.lines:
            axes.legend(fontsize="small")
    try:
        figure.savefig(file)
    except (OSError, ValueError) as err:
        raise Usage("U062", f"cannot write {file}: {err}", File(str(file)),
                    hint="choose another place, or .png, .svg, .pdf") from None


def _roofline(axes: Any, record: dict[str, Any]) -> None:
    """The line is the bandwidth: tokens a second that reading so many bytes a token allows."""
    points = [(r["decode"]["read_bytes"] / 1e6, r["decode"]["tokens_per_second"], f"{r['peer']}, {r['threads']}")
              for r in record["summary"] if r["decode"] and r["decode"]["read_bytes"]]
    sizes = [x for x, _, _ in points] or [record["model"]["read_per_token"] / 1e6]
    span = [min(sizes) / 2, max(sizes) * 2]
    for b in {b["threads"]: b for b in record["bandwidth"]}.values():
        label = f"limit, {b['threads']} thread{'s' * (b['threads'] > 1)}"
        axes.plot(span, [b["bytes_per_second"] / 1e6 / x for x in span], label=label)
    for x, y, label in points:
        axes.plot([x], [y], "o")
        axes.annotate(label, (x, y), fontsize="small", xytext=(4, 4), textcoords="offset points")
    axes.set(title="decode under the memory's limit", xlabel="MB read a token", ylabel="tokens a second", xscale="log",
             yscale="log")
    if axes.lines:
        axes.legend(fontsize="small")
