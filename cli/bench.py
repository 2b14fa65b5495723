"""`uaii bench TARGET`: an artifact beside other engines on the same model, and against the memory's limit."""
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from uaii.cli.compile import ACCEPT, CONTEXT, TARGET, WEIGHTS
from uaii.cli.explain import COMPILE
from uaii.cli.shell import data, guarded, stop_on_sigterm, talk
from uaii.ir.diag import Malformed, Usage
from uaii.ir.loc import File

QUICK = {"threads": "1", "prompts": "16", "new": 8, "contexts": "", "rounds": 1, "context_rounds": 1, "context_steps": 4}
FULL = {"threads": "1,2", "prompts": "16,128,512", "new": 96, "contexts": "1k,4k,8k", "rounds": 5, "context_rounds": 1,
        "context_steps": 16}
COUNT = click.IntRange(min=1)


@click.command()
@click.argument("model", required=False, metavar="TARGET", type=click.Path(path_type=Path))
@click.option("--gguf", type=click.Path(path_type=Path), metavar="FILE", help="For llama.cpp. Default: what was compiled.")
@click.option("--genai", type=click.Path(path_type=Path), metavar="DIR", help="A build of the model by onnxruntime-genai.")
@click.option("--beside", type=click.Path(path_type=Path), metavar="DIR", help="Another artifact to measure beside TARGET.")
@click.option("--peer", "only", multiple=True, metavar="NAME",
              help="Only these beside uaii: llama.cpp, genai, 'genai-artifact', artifact, transformers, none. Default: all.")
@click.option("--threads", metavar="N,...", help="Thread counts (1,2).")
@click.option("--prompts", metavar="N,...", help="Prompt lengths in tokens (16,128,512).")
@click.option("--new", type=COUNT, help="Tokens to generate after the first prompt (96).")
@click.option("--contexts", metavar="N,...", help="Context lengths to generate at: 1k,4k,8k; '' for none.")
@click.option("--rounds", type=COUNT, help="How often everything is measured (5).")
@click.option("--context-rounds", type=COUNT, help="How often the contexts are (1): filling them takes long.")
@click.option("--context-steps", type=COUNT, help="Tokens to generate at each context (16).")
@click.option("--quick", is_flag=True, help="A smoke run: 1 thread, a prompt of 16, 8 new tokens, 1 round, no contexts.")
@TARGET
@WEIGHTS
@CONTEXT
@ACCEPT
@click.option("--format", "fmt", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True,
              help="json holds every round.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the JSON here too.")
@click.option("--plot", "picture", type=click.Path(path_type=Path), metavar="FILE", help="Draw roofline and context costs.")
@click.option("--from", "saved", type=click.Path(path_type=Path), metavar="FILE", help="Show a saved JSON; measure nothing.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@click.pass_context
@guarded
def main(ctx: click.Context, /, model: Path | None, saved: Path | None, fmt: str, out: Path | None, picture: Path | None,
         quiet: bool, **options: Any) -> None:
    """Measure TARGET, an artifact or a model (compiled into the cache first), beside the other engines that are installed.

    Each measurement is a process of its own, engines take turns, and medians are told. Ctrl-C keeps the rounds so far.
    """
    from uaii.explanation import is_artifact

    if (model is None) == (saved is None):
        raise Usage("U060", "give an artifact or a model, or --from with a saved JSON",
                    hint="uaii bench ARTIFACT, uaii bench MODEL.gguf, or uaii bench --from FILE")
    given = [flag for name, flag in COMPILE.items() if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT]
    if given and (model is None or is_artifact(model)):
        raise Usage("U044", f"{given[0]} is of a compile, and {model or saved} is compiled already", File(str(model or saved)),
                    hint="leave it out, or give the checkpoint")
    if picture is not None:
        from uaii.cli.measuring.plot import drawer
        drawer()
    record = read(saved) if saved is not None else measured(model or Path(), quiet=quiet, **options)
    if out is not None:
        write(out, record)
    if picture is not None:
        from uaii.cli.measuring.plot import plot
        plot(record, picture)
    show(record, fmt)
    if record["interrupted"]:
        sys.exit(130)


def read(file: Path) -> dict[str, Any]:
    """A saved record. Raises Usage U061, Malformed U061."""
    from uaii.cli.measuring.report import FORMAT

    try:
        found = json.loads(file.read_text("utf-8"))
    except OSError as err:
        raise Usage("U061", f"cannot read {file}: {err.strerror}", File(str(file))) from None
    except (ValueError, RecursionError) as err:
        raise Malformed("U061", f"{file} is not JSON: {err}", File(str(file))) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT or "summary" not in found:
        raise Malformed("U061", f"{file} is no record of uaii bench in format {FORMAT}", File(str(file)),
                        hint="make one with uaii bench TARGET --out FILE")
    return found


def write(file: Path, record: dict[str, Any]) -> None:
    """Writes a record as JSON. Raises Usage U062."""
    try:
        file.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", "utf-8")
    except OSError as err:
        raise Usage("U062", f"cannot write {file}: {err.strerror}", File(str(file)), hint="choose another place") from None


def show(record: dict[str, Any], fmt: str) -> None:
    """On stdout: the record, or its facts and tables."""
    from uaii.cli.measuring.report import facts, tables
    from uaii.cli.table import pairs, table

    if fmt == "json":
        data(record)
        return
    if fmt == "markdown":
        click.echo(markdown(record), nl=False)
        return
    pairs(facts(record))
    for t in tables(record):
        click.echo(f"\n{t.title}")
        table(t.columns, t.rows, right=t.right)


def markdown(record: dict[str, Any]) -> str:
    """Facts as a list, then the tables."""
    from uaii.cli.measuring.report import facts, tables
    return "\n".join(["".join(f"- {name}: {value}\n" for name, value in facts(record)), *(t.markdown() for t in tables(record))])


def measured(model: Path, *, quick: bool, only: tuple[str, ...], gguf: Path | None, genai: Path | None, beside: Path | None,
             quiet: bool, **options: Any) -> dict[str, Any]:
    """The record of a run. Raises Usage U060 for options that make no sense, and what compiling and running raise."""
    from uaii.cli.measuring.machine import Watch
    from uaii.cli.measuring.report import record
    from uaii.cli.measuring.rounds import Rounds
    from uaii.cli.measuring.subject import Subject

    stop_on_sigterm()
    presets = QUICK if quick else FULL
    settings: dict[str, Any] = {k: presets[k] if options[k] is None else options.pop(k) for k in presets}
    settings |= {k: sizes(k, settings[k]) for k in ("threads", "prompts", "contexts")}

    def say(text: str) -> None:
        if not quiet:
            talk.print(f"note: {text}", markup=False)

    watch = Watch(0.1 if quick else 1.0)
    for text in watch.warnings():
        say(text)
    compiling = {k: options[k] for k in ("target", "weights", "context", "accept")}
    subject = Subject.of(model, compiling, quiet)
    who, absent = subject.contenders(only, {"gguf": gguf, "genai": genai, "beside": beside})
    for one in absent:
        say(f"{one['name']} is left out: {one['reason']} ({one['hint']})")
    plan, dropped = subject.plan(settings, quick)
    for length in dropped:
        say(f"{length} tokens are left out: beyond the model's context of {subject.manifest.context_length}")
    rounds = Rounds(plan, who, say)
    rounds.run()
    return record(subject, settings, watch, rounds, who, absent)


def sizes(option: str, text: str) -> tuple[int, ...]:
    """Counts from a list such as 16,128 or 1k,4k (k is 1024), ascending. Raises Usage U060."""
    parts = [p.strip().lower() for p in text.split(",") if p.strip()]
    whole = [p.removesuffix("k") for p in parts]
    if not all(p.isascii() and p.isdigit() and int(p) for p in whole) or (not parts and option != "contexts"):
        raise Usage("U060", f"--{option} {text}: expected numbers above 0 with commas between", hint=f"--{option} {FULL[option]}")
    return tuple(sorted({int(n) * (1024 if p.endswith("k") else 1) for n, p in zip(whole, parts, strict=True)}))
