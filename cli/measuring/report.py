"""From raw rounds to medians, ratios and shares of the memory's limit, and to tables."""
from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from uaii import __version__
from uaii.cli.measuring.machine import Watch, machine
from uaii.cli.measuring.peers import PEERS
from uaii.cli.measuring.rounds import Contender, Rounds
from uaii.cli.measuring.subject import Subject
from uaii.ir.memory import size

FORMAT = 1  # of the record; docs/performance.md describes it
Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A title, column names, cells as text; columns in `right` hold figures."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    left: int = 2

    @property
    def right(self) -> tuple[str, ...]:
        """Names of the columns of figures."""
        return self.columns[self.left:]

    def markdown(self) -> str:
        """As a Markdown table under its title."""
        rule = ["---"] * self.left + ["---:"] * len(self.right)
        return f"**{self.title}**\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in (self.columns, rule, *self.rows))


def record(subject: Subject, settings: dict[str, Any], watch: Watch, rounds: Rounds, who: Sequence[Contender],
           absent: Sequence[dict[str, str]]) -> Row:
    """The whole of a run, as docs/performance.md describes it."""
    versions = {r["peer"]: r.pop("version") for r in rounds.rows}

    def cache(name: str, length: float) -> float:
        return subject.traffic.cache(length, PEERS[name].cache_bytes)

    reads = {c.name: c.read_per_token for c in who}
    gone = [{"name": n, "reason": why, "hint": ""} for n, why in rounds.failed.items()]
    return {"format": FORMAT, "uaii": __version__, "interrupted": rounds.interrupted, "model": subject.record(),
            "settings": settings, "warnings": watch.warnings(), "compile": subject.compiled,
            "machine": {**machine(), "busy": watch.busy, "load_average": watch.load, "stolen": watch.stolen()},
            "peers": [{"name": c.name, "version": versions[c.name], "options": PEERS[c.name].options,
                       "read_per_token": c.read_per_token} for c in who if c.name in versions],
            "absent": [*absent, *gone],
            "summary": summary(rounds.rows, rounds.bandwidth, reads, cache, settings["prompts"]),
            "ratios": ratios(rounds.rows), "bandwidth": rounds.bandwidth, "rows": rounds.rows}


def summary(rows: Sequence[Row], bandwidth: Sequence[Row], reads: dict[str, int | None], cache: Callable[[str, float], float],
            prompts: Sequence[int]) -> list[Row]:
    """One object per thread count and engine, medians over the rounds.

    `reads`: weight bytes a step of each engine reads; `cache(engine, length)`: bytes of keys and values after `length` tokens.
    The share of the limit is (weights + cache) / seconds of a step / the bandwidth measured at this thread count.
    """
    out = []
    for threads, peer in dict.fromkeys((r["threads"], r["peer"]) for r in rows):
        plain, long = (_of(rows, kind, threads, peer) for kind in ("prompts", "contexts"))
        speed = _median(b["bytes_per_second"] for b in bandwidth if b["threads"] == threads)

        def limit(length: float, seconds: float | None, peer: str = peer, speed: float | None = speed) -> Row:
            weights = reads.get(peer)
            nbytes = None if weights is None else round(weights + cache(peer, length))
            return {"read_bytes": nbytes, "share_of_limit": nbytes / seconds / speed if nbytes and seconds and speed else None}

        decoded = [r["decode"] for r in plain if r["decode"]]
        step = _median(d["seconds"] / d["tokens"] for d in decoded)
        row = {"threads": threads, "peer": peer, "rounds": len(plain)}
        row |= {k: _median(r[k] for r in plain) for k in ("load_seconds", "start_bytes", "loaded_bytes", "peak_bytes")}
        row["prefill"] = [{"tokens": n, "tokens_per_second": n / s} for n, s in _seconds(plain, "prefill", "tokens", "seconds")]
        middle = min(prompts[:1], default=0) + (decoded[0]["tokens"] / 2 if decoded else 0)
        row["decode"] = {"tokens_per_second": 1 / step, **limit(middle, step)} if step else None
        fills = dict(_seconds(long, "contexts", "context", "fill_seconds"))
        counts = {c["context"]: c["fill_tokens"] for r in long for c in r["contexts"]}
        row["contexts"] = [{"context": n, "step_seconds": s, **limit(n, s), "fill_tokens": counts[n],
                            "fill_tokens_per_second": counts[n] / fills[n]}
                           for n, s in _seconds(long, "contexts", "context", "median_step_seconds")]
        out.append(row)
    return out


def ratios(rows: Sequence[Row]) -> list[Row]:
    """uaii's rate over each other engine's: above 1, uaii is faster. Medians over rounds of the two runs of one round."""
    out = []
    for threads, peer in dict.fromkeys((r["threads"], r["peer"]) for r in rows):
        if peer == "uaii":
            continue
        pairs = [(a, b) for kind in ("prompts", "contexts") for a in _of(rows, kind, threads, "uaii")
                 for b in _of(rows, kind, threads, peer) if a["round"] == b["round"]]
        row: Row = {"threads": threads, "peer": peer,
                    "decode": _median(b["decode"]["seconds"] / a["decode"]["seconds"] for a, b in pairs if a["decode"]),
                    "load": _median(b["load_seconds"] / a["load_seconds"] for a, b in pairs)}
        for name, part, key, seconds in (("prefill", "prefill", "tokens", "seconds"),
                                         ("contexts", "contexts", "context", "median_step_seconds")):
            found: dict[int, list[float]] = {}
            for a, b in pairs:
                for one, other in zip(a[part], b[part], strict=True):
                    found.setdefault(one[key], []).append(other[seconds] / one[seconds])
            row[name] = [{key: n, "ratio": statistics.median(v)} for n, v in found.items()]
        out.append(row)
    return out


def _of(rows: Iterable[Row], kind: str, threads: int, peer: str) -> list[Row]:
    return [r for r in rows if (r["kind"], r["threads"], r["peer"]) == (kind, threads, peer)]


def _seconds(rows: Sequence[Row], part: str, key: str, value: str) -> list[tuple[int, float]]:
    """Per size the median of a time over the rounds."""
    found: dict[int, list[float]] = {}
    for r in rows:
        for one in r[part]:
            found.setdefault(one[key], []).append(one[value])
    return [(n, statistics.median(v)) for n, v in found.items()]


def _median(values: Iterable[float | None]) -> float | None:
    there = [v for v in values if v is not None]
    return statistics.median(there) if there else None


def tables(record: Row) -> list[Table]:
    """The tables of a record: rates and memory, ratios, contexts; those that have rows."""
    rows = record["summary"]
    prompts = list(dict.fromkeys(p["tokens"] for r in rows for p in r["prefill"]))
    contexts = list(dict.fromkeys(c["context"] for r in rows for c in r["contexts"]))
    main = Table("Medians", ("threads", "engine", "load s", *(f"prefill {n}" for n in prompts), "decode", "MB/token",
                             "of the limit", "resident MB", "peak MB"), [[
        str(r["threads"]), r["peer"], _figure(r["load_seconds"], 2), *(_rate(r["prefill"], "tokens", n, "tokens_per_second")
                                                                       for n in prompts),
        _figure(r["decode"] and r["decode"]["tokens_per_second"], 1), _mega(r["decode"] and r["decode"]["read_bytes"]),
        _percent(r["decode"] and r["decode"]["share_of_limit"]), _mega(r["loaded_bytes"]), _mega(r["peak_bytes"])] for r in rows])
    against = Table("uaii's rate over the other's", ("threads", "engine", *(f"prefill {n}" for n in prompts), "decode",
                                                     *(f"at {n}" for n in contexts)), [[
        str(r["threads"]), r["peer"], *(_rate(r["prefill"], "tokens", n, "ratio", 2) for n in prompts), _figure(r["decode"], 2),
        *(_rate(r["contexts"], "context", n, "ratio", 2) for n in contexts)] for r in record["ratios"]])
    long = Table("By context", ("threads", "engine", "context", "ms/token", "MB/token", "of the limit", "prefill up to there"), [[
        str(r["threads"]), r["peer"], str(c["context"]), _figure(1e3 * c["step_seconds"], 2), _mega(c["read_bytes"]),
        _percent(c["share_of_limit"]), _figure(c["fill_tokens_per_second"], 0)] for r in rows for c in r["contexts"]])
    return [t for t in (main, against, long) if t.rows]


def facts(record: Row) -> list[tuple[str, str]]:
    """What stands above the tables."""
    m, model, made = record["machine"], record["model"], record["compile"]
    done = max(r["rounds"] for r in record["summary"])
    speeds = {t: _median(b["bytes_per_second"] for b in record["bandwidth"] if b["threads"] == t)
              for t in record["settings"]["threads"]}
    versions = [f"{p['name']} {p['version']}" for p in record["peers"][1:]]
    return [
        ("model", f"{model['name']}: {model['family']}, {model['layers']} layers, {model['nodes']} nodes"),
        ("bytes", f"{size(model['stored_bytes'])} of weights, {size(model['read_per_token'])} read a token, "
                  f"{size(model['cache_bytes_per_token'])} of cache a token"),
        ("machine", f"{m['cpu']}, {m['cores']} cores, {' '.join(m['isa']) or 'instructions unknown'}"),
        ("versions", ", ".join([f"uaii {record['uaii']}", f"onnxruntime {m['versions']['onnxruntime']}", *versions])),
        ("read", ", ".join(f"{s / 1e9:.1f} GB/s at {t} thread{'s' * (t > 1)}" for t, s in speeds.items() if s) or "not measured"),
        *(("warning", text) for text in record["warnings"]),
        *([("warning", f"interrupted after {done} rounds")] if record["interrupted"] else []),
        *([("compile", f"{made['seconds']:.1f} s, peak memory {size(made['peak_bytes'])}")] if made else [])]


def _rate(found: list[Row], key: str, n: int, value: str, digits: int = 0) -> str:
    return next((_figure(one[value], digits) for one in found if one[key] == n), "")


def _figure(x: float | None, digits: int) -> str:
    return "" if x is None else f"{x:.{digits}f}"


def _mega(x: float | None) -> str:
    return "" if x is None else f"{x / 1e6:.1f}"


def _percent(x: float | None) -> str:
    return "" if x is None else f"{100 * x:.0f} %"
