"""Chat templates: the text that transformers renders, from a template that nobody vouches for."""
from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError, UndefinedError

from uaii.frontend.chat_limits import Stopped, budget, spent
from uaii.frontend.chat_sandbox import Sandbox
from uaii.ir.diag import Diagnostic, Malformed, Unsupported
from uaii.ir.loc import File

NAME = "chat template"
LONGEST = 1 << 16  # characters; the longest public templates have some ten thousand
# Keys that reasoning goes by; the first is what most templates read, gpt-oss reads the second.
REASONING = ("reasoning_content", "thinking", "reasoning")


class Refused(TemplateError):
    """The template called raise_exception."""


def choose(template: str | None, named: Mapping[str, str], tools: Sequence[Any] | None) -> str | None:
    """The template to use: tool_use when tools are given and there is one, else the default; None when there is none."""
    return named.get("tool_use", template) if tools else template


def render(template: str | None, messages: Sequence[Mapping[str, Any]], *, bos_token: str, eos_token: str,
           tools: Sequence[Mapping[str, Any]] | None = None, add_generation_prompt: bool = True,
           documents: Sequence[Mapping[str, Any]] | None = None,
           date: datetime.date | datetime.datetime | None = None, **extra: Any) -> str:
    """The conversation as the template writes it, equal to transformers' apply_chat_template (5.24).

    `date` is what strftime_now tells, the present by default; `extra` are further names the template may read. As in
    transformers, keys of a message that are None are left out. Raises Unsupported K530 (no template), K531 (it reaches out of
    the sandbox), K532 (it exceeds the limits), Malformed K533 (it does not parse), K534 (it refuses the conversation, with
    its own words), K535 (it fails).
    """
    if template is None or not template.strip():
        raise Unsupported("K530", "no chat template; use a raw prompt or give one", File("chat_template.jinja"),
                          why="the format of a conversation is part of the model; another one gives nonsense",
                          hint="prompt with plain text, or put the model's chat_template.jinja into the folder")
    compiled = _compiled(template)
    names = {"messages": _messages(messages), "tools": _plain(tools), "documents": _plain(documents),
             "bos_token": bos_token, "eos_token": eos_token, "add_generation_prompt": add_generation_prompt,
             "strftime_now": lambda form: (date or datetime.datetime.now()).strftime(form)} | _plain(extra)
    try:
        given = {key: value for key, value in names.items() if not callable(value)}
        with budget(len(template) + len(json.dumps(given))):
            return "".join(compiled.generate(**names))
    except Exception as err:
        raise _diagnosis(err) from None


@lru_cache(maxsize=16)
def _compiled(template: str) -> jinja2.Template:
    if len(template) > LONGEST:
        raise Unsupported("K532", f"the chat template exceeds the limits: it has more than {LONGEST} characters", File(NAME))
    env = Sandbox()
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise
    try:
        return env.from_string(template)
    except TemplateSyntaxError as err:
        raise Malformed("K533", f"the chat template does not parse: {err.message}", File(NAME, f"line {err.lineno}"),
                        hint="correct the template; no other one is put in its place") from None
    except RecursionError:
        raise Malformed("K533", "the chat template is nested too deeply", File(NAME)) from None


def _diagnosis(err: Exception) -> Diagnostic:
    where = File(NAME, f"line {line}" if (line := _line(err)) else "")
    match err:
        case Diagnostic():
            return err
        case Refused():
            return Malformed("K534", f"the chat template refuses this conversation: {err.message}", where,
                             why="these are the template's own words", hint="change the messages")
        case SecurityError():
            return Unsupported("K531", f"the chat template is not safe to run: {err.message}", where,
                               why="a template comes with the model and must not reach out of its sandbox")
        case Stopped() | RecursionError() | OverflowError() | MemoryError():
            return Unsupported("K532", f"the chat template exceeds the limits: {err or type(err).__name__}", where)
        case UndefinedError() | TemplateError():
            return Malformed("K535", f"the chat template fails: {err.message}", where, hint="check the messages' fields")
        case _:
            return Malformed("K535", f"the chat template fails: {type(err).__name__}: {err}", where,
                             hint="check the messages' fields")


def _line(err: BaseException) -> int | None:
    lines, frame = [], err.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == "<template>":
            lines.append(frame.tb_lineno)
        frame = frame.tb_next
    return lines[-1] if lines else None


def _raise(message: str) -> None:
    raise Refused(str(message))


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
            sort_keys: bool = False) -> str:
    if (indent if isinstance(indent, int) else len(indent or "")) > 64:
        raise Stopped("an indent that large")
    out, length = [], 0
    for part in json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
                                 ).iterencode(value):
        length += len(part)
        spent().fits(length)
        out.append(part)
    return "".join(out)


def _messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    made = []
    for message in messages:
        if not isinstance(message, Mapping):
            raise Malformed("K535", f"a message must be an object with role and content, not {type(message).__name__}",
                            File("messages"))
        plain = {key: _plain(value) for key, value in message.items() if value is not None}
        if (reasoning := next((plain[key] for key in REASONING if key in plain), None)) is not None:
            plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
        made.append(plain)
    return made


def _plain(value: Any) -> Any:
    """JSON types only: no method of a caller's object is within the template's reach."""
    match value:
        case None | bool():
            return value
        case str():
            return str.__str__(value)
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case Mapping():
            return {_plain(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return f"<{type(value).__name__}>"
