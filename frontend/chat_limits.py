"""What one rendering of a chat template may spend: steps, processor time and characters, asked before they are spent."""
from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

STEPS = 1_000_000       # loop rounds, calls and filters; the longest templates take a few thousand
SECONDS = 0.5           # of processor time, beyond what the length of the input takes
TEXT = 2_000_000        # characters in one value, beyond what the input itself is long
ELEMENT = 16            # characters that an element of a list counts for
NUMBER = 1_000_000      # width, count or exponent
WIDTH = re.compile(r"\d{6,}|\*|\{[^{}]*\{")  # given, or taken from a value
PADDING = ("center", "ljust", "rjust", "zfill", "expandtabs")
SLOW = ("pprint", "xmlattr", "urlize", "wordwrap", "title", "striptags")  # microseconds for a character
COUNTING = ("center", "indent", "wordwrap", "batch", "slice", "truncate", "round")


class Stopped(Exception):
    """A limit was reached."""


class Budget:
    """What one rendering may still spend; `size` is the length of its input."""

    def __init__(self, size: int) -> None:
        self.left, self.size, self.written = STEPS, TEXT + 8 * size, 0
        self.until = time.thread_time() + SECONDS + size / TEXT

    def step(self) -> None:
        """One loop round, call or filter. Raises Stopped."""
        self.left -= 1
        if self.left < 0:
            raise Stopped(f"more than {STEPS} steps")
        if time.thread_time() > self.until:
            raise Stopped(f"more than {SECONDS} seconds of work")

    def fits(self, size: int) -> None:
        """A text of this many characters is about to be made. Raises Stopped."""
        if size > self.size:
            raise Stopped(f"a text of more than {self.size} characters")

    def write(self, size: int) -> None:
        """This many characters go out. Raises Stopped."""
        self.written += size
        self.fits(self.written)

    def holds(self, value: Any, times: int = 1) -> None:
        """The value is made, `times` over; what it holds twice counts twice, as it is written twice. Raises Stopped."""
        total, todo = 0, [value]
        while todo:
            item = todo.pop()
            inner: Iterable[Any] = (*item, *item.values()) if isinstance(item, dict) else \
                item if isinstance(item, list | tuple) else ()
            total += len(item) if isinstance(item, str) else item.bit_length() // 3 if isinstance(item, int) else ELEMENT
            self.fits((total + ELEMENT * (len(item) if inner else 0)) * times)
            todo.extend(inner)


_SPENT: ContextVar[Budget] = ContextVar("chat_template_budget")


@contextmanager
def budget(size: int) -> Iterator[Budget]:
    """Limits for one rendering whose input has `size` characters."""
    token = _SPENT.set(Budget(size))
    try:
        yield _SPENT.get()
    finally:
        _SPENT.reset(token)


def spent() -> Budget:
    """The budget of the rendering that is going on; without one (Jinja computes constants ahead) LookupError."""
    return _SPENT.get()


def rendering() -> Budget | None:
    """The budget, None when nothing is rendered."""
    return _SPENT.get(None)


def formatted(text: str, *values: Any) -> None:
    """The text is about to be filled in, each mark perhaps with all the values. Raises Stopped."""
    if WIDTH.search(text):
        raise Stopped("a format width that large")
    spent().fits(len(text))
    spent().holds(list(values), text.count("{") + text.count("%"))


def replaced(text: str, old: str, new: str) -> None:
    """A replacement is about to be made. Raises Stopped."""
    spent().fits(len(text) + text.count(old) * len(new))


def joined(parts: Iterable[Any], between: str) -> list[Any]:
    """The parts, which are about to be joined, as a list. Raises Stopped."""
    listed = list(parts)
    spent().fits(sum(len(str(part)) + len(between) for part in listed))
    return listed


def method(name: str, owner: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Checks a method of a string before it is called; its arguments, generators as lists. Raises Stopped."""
    values = [*args, *kwargs.values()]
    if name in PADDING and any(isinstance(x, int) and x > NUMBER for x in values):
        raise Stopped("a width that large")
    if name == "expandtabs":
        spent().fits(len(owner) + owner.count("\t") * (values[0] if values and isinstance(values[0], int) else 8))
    if name == "replace" and len(values) > 1 and all(isinstance(x, str) for x in values[:2]):
        replaced(owner, values[0], values[1])
    if name == "translate" and values and isinstance(values[0], dict):
        spent().fits(len(owner) * max((len(x) for x in values[0].values() if isinstance(x, str)), default=1))
    return (joined(args[0], owner), *args[1:]) if name == "join" and args else args


def limited(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, a step and checked before it works; lists that it makes are checked too."""
    first = int(hasattr(filter_, "jinja_pass_arg"))

    @wraps(filter_)
    def run(*args: Any, **kwargs: Any) -> Any:
        spent().step()
        values = [*args[first:], *kwargs.values()]
        if name in COUNTING and any(isinstance(x, int) and abs(x) > NUMBER for x in values[1:]):
            raise Stopped(f"a number that large for the filter {name}")
        texts = [x for x in values[1:] if isinstance(x, str)]
        if name in SLOW and values:
            spent().holds(values[0], 100)
        match name:
            case "replace" if len(texts) > 1:
                replaced(str(values[0]), texts[0], texts[1])
            case "join":
                args = (*args[:first], joined(values[0], max(texts, key=len, default="")), *args[first + 1:])
            case "format":
                formatted(str(values[0]), *values[1:])
            case "indent":
                each = max([len(x) for x in texts] + [x for x in values[1:] if isinstance(x, int)], default=4)
                spent().fits((str(values[0]).count("\n") + 1) * each)
            case "wordwrap" if texts:
                replaced(str(values[0]), "", max(texts, key=len))
        made = filter_(*args, **kwargs)
        if isinstance(made, list | tuple | dict):
            spent().holds(made)
        return made
    return run
