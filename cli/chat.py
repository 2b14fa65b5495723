"""`uaii-run DIR --chat`: a conversation in the terminal or through a pipe."""
from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from uaii.cli.demo import cache_dir
from uaii.cli.run import answer, interrupted, objects, show_stats
from uaii.cli.shell import talk
from uaii.ir.diag import Diagnostic

HELP = """/system TEXT   begin anew with a system message (without TEXT: with none)
/reset         begin anew
/save FILE     write the conversation as JSON
/load FILE     go on with a saved one
/stats         what the last answer took, and the conversation so far
/help, /exit
Ctrl-C stops an answer and keeps it, Ctrl-D ends; {newline} begins a new line"""
EXAMPLE = '[{"role": "user", "content": "Hello"}]'
Ask = Callable[[], str]


def converse(model: Any, system: str | None, template: dict[str, Any], options: dict[str, Any], *, stats: bool,
             quiet: bool) -> None:
    """Reads user turns, one a line where there is no terminal, and answers each; the cache is kept between turns.

    `template` goes to the chat template, `options` to each generation. In a terminal an error ends the turn alone.
    """
    talking = Conversation(model, system, template, options, stats=stats, quiet=quiet)
    model.render([*talking.turns, {"role": "user", "content": "x"}], **talking.rendering)  # no template: said at once
    asking = sys.stdin.isatty()
    ask, newline = terminal() if asking else (piped, "")
    if asking and not quiet:
        talk.print("/help lists the commands", markup=False)
    while True:
        try:
            line = ask().strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            if not asking:
                raise
            continue
        if line in ("/exit", "/quit"):
            return
        try:
            talking.hear(line, HELP.format(newline=newline or "nothing"))
        except Diagnostic as err:
            if not asking:
                raise
            print(err, file=sys.stderr)
        if not asking and talking.last is not None:
            interrupted(talking.last.finish_reason)


class Conversation:
    """The messages so far and the cache that holds their keys and values; `last` is the latest answer's result."""

    def __init__(self, model: Any, system: str | None, template: dict[str, Any], options: dict[str, Any], *, stats: bool = False,
                 quiet: bool = False) -> None:
        self.model, self.template, self.options, self.stats, self.quiet = model, template, options, stats, quiet
        self.rendering = {k: v for k, v in template.items() if k not in ("parse_special", "note")}
        self.cache = model.session.cache()
        self.last: Any = None
        self.begin(system)

    def begin(self, system: str | None) -> None:
        """A new conversation; what the cache holds of the old one is reused as far as it is the same."""
        self.system = system
        self.turns: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        self.read = self.reused = self.made = 0

    def hear(self, line: str, help_: str = HELP) -> None:
        """One line of the user: a command or a message. Raises Diagnostic; the conversation is then as it was."""
        command, _, rest = line.partition(" ")
        match command:
            case "":
                return
            case "/help":
                talk.print(help_, markup=False)
            case "/reset":
                self.begin(self.system)
            case "/system":
                self.begin(rest.strip() or None)
            case "/save" | "/load":
                self.file(command, rest.strip())
            case "/stats":
                self.report()
            case _ if command.startswith("/") and command[1:].isalpha():
                talk.print(f"unknown command {command}; /help lists them", markup=False)
            case _:
                self.reply([*self.turns, {"role": "user", "content": line}])

    def reply(self, turns: list[dict[str, Any]]) -> None:
        """Answers the last message on stdout; both join the conversation."""
        ids = self.model.chat_ids(turns, **self.template)
        result = answer(self.model, ids, cache=self.cache, stats=self.stats, quiet=self.quiet, **self.options)
        self.turns = [*turns, {"role": "assistant", "content": result.text}]
        self.last = result
        self.read += result.stats.prompt_tokens
        self.reused += result.stats.reused_tokens
        self.made += result.stats.generated_tokens

    def file(self, command: str, name: str) -> None:
        """/save and /load; a loaded conversation that ends with a question is answered."""
        if not name:
            talk.print(f"{command} needs a file", markup=False)
        elif command == "/save":
            try:
                Path(name).expanduser().write_text(json.dumps(self.turns, ensure_ascii=False, indent=1) + "\n", "utf-8")
            except (OSError, ValueError) as err:
                talk.print(f"cannot write {name}: {err}", markup=False)
        else:
            loaded = objects(Path(name).expanduser(), "messages", EXAMPLE)
            self.model.render(loaded, **self.rendering)
            first = loaded[0] if loaded else {}
            self.begin(str(first.get("content")) if first.get("role") == "system" else None)
            self.turns = loaded
            if loaded and loaded[-1].get("role") == "user":
                self.reply(loaded)

    def report(self) -> None:
        """The last answer's figures, and the sums of the conversation."""
        if self.last is None:
            talk.print("nothing has been answered yet", markup=False)
            return
        show_stats(self.last, self.model.session.provider)
        talk.print(f"conversation: {len(self.turns)} messages, prompts of {self.read} tokens, {self.reused} of them from the "
                   f"cache, {self.made} generated; {len(self.cache.ids[0])} of {self.model.session.context_length} tokens of "
                   "context in use", markup=False)


def piped() -> str:
    """A line of stdin, its bytes as UTF-8. Raises EOFError."""
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    return line.decode("utf-8", "replace")


def terminal() -> tuple[Ask, str]:
    """How to ask in a terminal, and how to begin a new line there: by prompt_toolkit, with a history, or by input()."""
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, History, InMemoryHistory
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    except ImportError:
        with suppress(ImportError):
            import readline  # noqa: F401, gives input() its line editing
        return plain, "a backslash at the end of a line"
    history: History = InMemoryHistory()
    file = cache_dir() / "chat_history"
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        history = FileHistory(str(file))
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def newline(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    session: PromptSession[str] = PromptSession("> ", history=history, key_bindings=keys, prompt_continuation="  ")
    return session.prompt, "Alt-Enter"


def plain() -> str:
    """A message by input(); a backslash at the end of a line goes on with the next. Raises EOFError."""
    lines = [input("> ")]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(input("  "))
    return "\n".join(lines)
