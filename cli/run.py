"""`uaii-run DIR`: generate from an artifact."""
from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from uaii.cli.shell import FORMAT, data, guarded, talk
from uaii.ir.diag import Malformed, Usage
from uaii.ir.loc import File
from uaii.ir.memory import size

TOOL = '[{"type": "function", "function": {"name": "f", "description": "...", "parameters": {}}}]'
Decorated = TypeVar("Decorated", bound=Callable[..., None])
ASKED = (
    click.option("--prompt", help="Text to continue. Without any prompt, text is read from stdin."),
    click.option("--prompt-file", type=click.Path(path_type=Path), help="File whose text is the prompt (- is stdin)."),
    click.option("--token-ids", help="Prompt as ids: 1,2,3."),
    click.option("--chat", "chatting", is_flag=True,
                 help="Use the model's chat template: one turn for a prompt, else a conversation."),
    click.option("--system", help="System message for --chat."),
    click.option("--tools", "tools_file", type=click.Path(path_type=Path), help="JSON list of tools for the chat template."),
    click.option("--parse-special", is_flag=True,
                 help="Control tokens in messages are read as such. Default: as plain text, so no message ends its own turn."),
    click.option("--batch", "batch_file", type=click.Path(path_type=Path), metavar="IN.jsonl",
                 help="Answer a file of prompts: one object a line with prompt, messages or token_ids, and what it overrides."),
    click.option("--out", "out_file", type=click.Path(path_type=Path), metavar="OUT.jsonl",
                 help="Where --batch writes, a line for each; lines that are there already are skipped. Default: stdout."),
    click.option("--batch-size", type=click.IntRange(min=1), metavar="N",
                 help="Prompts of --batch that run together: faster; with packed weights near-ties can fall otherwise than "
                      "alone (default 1)."),
    click.option("--max-new-tokens", type=int,
                 help="Stop after so many tokens. Default: 256, in a conversation to the context's end."),
    click.option("--greedy", is_flag=True, help="Always the likeliest token (the default unless a sampling option is given)."),
    click.option("--temperature", type=float, help="Divides the logits before sampling."),
    click.option("--top-k", type=int, help="Sample among the k likeliest."),
    click.option("--top-p", type=float, help="Sample among the likeliest that hold this share of the probability."),
    click.option("--min-p", type=float, help="Sample among tokens at least this likely, relative to the likeliest."),
    click.option("--repeat-penalty", type=float, help="Divides the logits of tokens that were seen (1 = off)."),
    click.option("--presence-penalty", type=float, help="Subtracted once for tokens that were generated."),
    click.option("--frequency-penalty", type=float, help="Subtracted for each time a token was generated."),
    click.option("--seed", type=int, help="Same seed, same tokens."),
    click.option("--stop", "stops", multiple=True, help="Text that ends generation; may be given several times."),
    click.option("--ignore-eos", is_flag=True, help="Do not stop at the model's end tokens."),
    click.option("--threads", type=int, help="Default: the physical cores."),
    click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True),
    click.option("--context", type=int, help="Longest text in tokens, below the artifact's own limit."),
    click.option("--logits", "logits_file", type=click.Path(path_type=Path),
                 help="Write the prompt's logits, float32 [positions, vocab], to this .npy file and stop."),
    click.option("--top-logprobs", type=int, default=0, help="Report the k likeliest tokens of every step (json)."),
    click.option("--stats", is_flag=True, help="Speed and memory, on stderr."),
    click.option("--quiet", is_flag=True, help="No notes on stderr."),
)


def asked(f: Decorated) -> Decorated:
    """Declares every option of a run: the prompt, how to draw tokens, when to stop, where to run, what to report."""
    for option in reversed(ASKED):
        f = option(f)
    return f


@click.command()
@click.argument("artifact", type=click.Path(path_type=Path))
@asked
@FORMAT
@guarded
def main(artifact: Path, **options: Any) -> None:
    """Generate text from the artifact folder ARTIFACT; tokens stream to stdout as they come.

    Ctrl-C ends a run with the text so far and exit code 130; in a conversation it only ends the answer.
    """
    respond(lambda: artifact, **options)


def respond(artifact: Callable[[], Path], *, prompt: str | None, prompt_file: Path | None, token_ids: str | None, chatting: bool,
            system: str | None, tools_file: Path | None, parse_special: bool, batch_file: Path | None, out_file: Path | None,
            batch_size: int | None, max_new_tokens: int | None, stops: tuple[str, ...], ignore_eos: bool, threads: int | None,
            device: str, context: int | None, logits_file: Path | None, top_logprobs: int, stats: bool, quiet: bool, fmt: str,
            **sampling: Any) -> None:
    """Does what the options ask of an artifact, which is asked for once they are known to make sense."""
    from uaii.backends.ort.session import Session
    from uaii.model import Model

    given = [n for n, v in (("--prompt", prompt), ("--prompt-file", prompt_file), ("--token-ids", token_ids),
                            ("--batch", batch_file)) if v is not None]
    if len(given) > 1:
        raise Usage("U030", f"{' and '.join(given)} exclude each other")
    if system is not None and not chatting:
        raise Usage("U031", "--system is part of a conversation: add --chat")
    talking = chatting or batch_file is not None
    for option, used, there, other in (
            ("--tools", tools_file, talking, "--chat"), ("--parse-special", parse_special, talking, "--chat"),
            ("--out", out_file, batch_file, "--batch"), ("--batch-size", batch_size, batch_file, "--batch"),
            ("--top-logprobs", top_logprobs, fmt == "json" or batch_file, "--format json"),
            ("--logits", logits_file, batch_file is None, "a single prompt")):
        if used and not there:
            raise Usage("U037", f"{option} goes with {other}")
    chosen = choose(dict(sampling))
    tools = objects(tools_file, "tools", TOOL) if tools_file is not None else None
    model = Model(Session.open(artifact(), threads=threads, device=device, context=context))

    def note(text: str) -> None:
        if not quiet:
            talk.print(f"note: {text}", markup=False)

    if not model.session.stop_ids and not ignore_eos and logits_file is None:
        note(f"this artifact names no stop token: only the length {'or --stop ' if stops else ''}ends generation")
    options: dict[str, Any] = {"ignore_eos": ignore_eos, "stop_strings": stops, "max_new_tokens": max_new_tokens}
    conversation: dict[str, Any] = {"parse_special": parse_special, "note": note} | ({"tools": tools} if tools else {})
    if chatting and not given and fmt == "text" and logits_file is None:
        from uaii.cli.chat import converse
        converse(model, system, conversation, options | {"sampling": chosen}, stats=stats, quiet=quiet)
        return
    options["max_new_tokens"] = 256 if max_new_tokens is None else max_new_tokens
    options["logprobs"] = top_logprobs
    if batch_file is not None:
        from uaii.cli.batch import run_batch
        run_batch(model, batch_file, out_file, batch_size or 1, options, sampling, conversation, chatting=chatting, system=system,
                  quiet=quiet, fmt=fmt)
        return
    ids = prompt_ids(model, prompt, prompt_file, token_ids, chatting, system, conversation)
    if logits_file is not None:
        write_logits(logits_file, model.logits(ids), ids, fmt)
    elif fmt == "json":
        done = record(model.start(ids, sampling=chosen, **options), top_logprobs)
        data(done)
        interrupted(done["finish_reason"])
    else:
        interrupted(answer(model, ids, stats=stats, quiet=quiet, sampling=chosen, **options).finish_reason)


def record(generation: Any, top_logprobs: int) -> dict[str, Any]:
    """A generation run to its end as a JSON object."""
    steps = [{"id": s.id, "logprob": s.logprob, "top": s.top} for s in generation]
    made: dict[str, Any] = generation.result.record() | ({"logprobs": steps} if top_logprobs else {})
    return made


def interrupted(reason: str) -> None:
    """Ends the process as shells expect after Ctrl-C; what was generated has been printed."""
    if reason == "interrupted":
        sys.exit(130)


def write_logits(file: Path, logits: Any, ids: list[int], fmt: str) -> None:
    """Writes logits to exactly this file. Raises Usage U038."""
    import numpy as np

    try:
        with file.open("wb") as f:
            np.save(f, logits)
    except OSError as err:
        raise Usage("U038", f"cannot write {file}: {err.strerror}", hint="choose another place") from None
    if fmt == "json":
        data({"prompt_tokens": ids, "logits": str(file), "shape": list(logits.shape)})


def objects(file: Path, what: str, example: str) -> list[dict[str, Any]]:
    """A JSON file that holds a list of objects. Raises Usage U035, Malformed U036."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except OSError as err:
        raise Usage("U035", f"cannot read {file}: {err.strerror}") from None
    except (ValueError, RecursionError) as err:
        raise Malformed("U036", f"{file} is not JSON: {err}", File(str(file))) from None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise Malformed("U036", f"{file} is not a list of {what}", File(str(file)), hint=example)
    return found


def choose(given: dict[str, Any]) -> Any:
    """Sampling parameters; greedy unless one of them was given. Raises Usage U032."""
    from uaii.backends.ort.sampling import Sampling

    greedy = given.pop("greedy")
    names = {"repeat_penalty": "repetition_penalty"}
    said = {names.get(k, k): v for k, v in given.items() if v is not None}
    drawing = [k for k in ("temperature", "top_k", "top_p", "min_p", "seed") if k in said]
    if greedy and drawing:
        raise Usage("U032", f"--greedy excludes --{drawing[0].replace('_', '-')}")
    if drawing:
        said.setdefault("temperature", 1.0)
    return Sampling(**said)


def prompt_ids(model: Any, prompt: str | None, file: Path | None, token_ids: str | None, chatting: bool,
               system: str | None, conversation: dict[str, Any]) -> list[int]:
    """The prompt's ids, from whichever option gave it; stdin when none did."""
    if token_ids is not None:
        return ids_of(token_ids)
    text = prompt if prompt is not None else read(file)
    if chatting:
        turns = [{"role": "system", "content": system}] if system is not None else []
        return list(model.chat_ids([*turns, {"role": "user", "content": text}], **conversation))
    return list(model.tokenizer.encode(text))


def ids_of(text: str) -> list[int]:
    """The ids of --token-ids. Raises Usage U033."""
    try:
        return [int(x) for x in text.replace(" ", "").split(",") if x]
    except ValueError:
        raise Usage("U033", f"--token-ids takes whole numbers with commas between, not {text!r}") from None


def read(file: Path | None) -> str:
    """A prompt from a file or stdin, its bytes as UTF-8."""
    if file is None or str(file) == "-":
        if file is None and sys.stdin.isatty():
            raise Usage("U034", "no prompt", hint="--prompt TEXT, --prompt-file FILE, --token-ids 1,2,3, --chat, or stdin")
        return sys.stdin.buffer.read().decode("utf-8", "replace")
    try:
        return file.read_bytes().decode("utf-8", "replace")
    except OSError as err:
        raise Usage("U035", f"cannot read {file}: {err.strerror}") from None


def answer(model: Any, ids: list[int], *, stats: bool = False, quiet: bool = False, cache: Any = None, **options: Any) -> Any:
    """Streams a generation to stdout; Ctrl-C ends it and keeps the text so far. Returns the result."""
    generation = model.start(ids, cache=cache, **options)
    with suppress(KeyboardInterrupt):  # between two steps; within one the generation itself ends
        for step in generation:
            sys.stdout.write(step.text)
            sys.stdout.flush()
    result = generation.result
    sys.stdout.write(result.tail + "\n")
    sys.stdout.flush()
    if result.finish_reason in ("context", "interrupted") and not quiet:
        talk.print({"context": f"stopped: the context of {model.session.context_length} tokens is full",
                    "interrupted": "interrupted"}[result.finish_reason], markup=False)
    if stats:
        show_stats(result, model.session.provider)
    return result


def show_stats(result: Any, provider: str) -> None:
    s = result.stats

    def rate(x: float | None) -> str:
        return f"{x:.1f} tokens/s" if x else "-"

    talk.print(f"prompt {s.prompt_tokens} tokens ({s.reused_tokens} from the cache), {rate(s.prefill_tokens_per_second)}; "
               f"generated {s.generated_tokens}, {rate(s.decode_tokens_per_second)}; load {s.load_seconds:.2f} s; "
               f"peak memory {size(s.peak_rss_bytes)}; {provider}; {result.finish_reason}", markup=False)
