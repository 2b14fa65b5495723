"""The Jinja environment of chat templates: transformers' dialect, with limits on work and text."""
from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

STEPS = 1_000_000       # loop rounds and calls; the longest templates take a few thousand
SECONDS = 10.0
TEXT = 16_000_000       # characters in one string, beyond what the input itself is long
NUMBER = 1_000_000      # width, count or exponent
WIDTH = re.compile(r"\d{6,}|\*")
PADDING = ("center", "ljust", "rjust", "zfill", "expandtabs")
# Filters that take a width or a count, or repeat one text inside another.
COUNTING = ("center", "indent", "wordwrap", "batch", "slice", "truncate", "format", "replace", "join", "filesizeformat", "round")


class Stopped(Exception):
    """A limit was reached."""


class Budget:
    """What one rendering may still spend."""

    def __init__(self, size: int) -> None:
        self.left, self.size, self.until, self.written = STEPS, TEXT + 8 * size, time.monotonic() + SECONDS, 0

    def step(self) -> str:
        """One loop round or call. Raises Stopped."""
        self.left -= 1
        if self.left < 0:
            raise Stopped(f"more than {STEPS} steps")
        if self.left % 256 == 0 and time.monotonic() > self.until:
            raise Stopped(f"more than {SECONDS:.0f} seconds")
        return ""

    def fits(self, size: int) -> None:
        """A string of this many characters is about to be made. Raises Stopped."""
        if size > self.size:
            raise Stopped(f"a text of more than {self.size} characters")

    def text(self, size: int) -> None:
        """This many characters go out. Raises Stopped."""
        self.written += size
        self.fits(self.written)


_SPENT: ContextVar[Budget] = ContextVar("chat_template_budget")


@contextmanager
def budget(size: int) -> Iterator[Budget]:
    """Limits for one rendering whose input has `size` characters."""
    token = _SPENT.set(Budget(size))
    try:
        yield _SPENT.get()
    finally:
        _SPENT.reset(token)


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's tokens for training; it renders as its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller: Callable[[], str]) -> str:
        return caller()


class SafeNamespace(Namespace):
    """A namespace without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, rest = args[0], args[1:]
        attrs = dict(*rest, **kwargs)
        for name in attrs:
            _public(name)
        Namespace.__init__(self, attrs)

    def __setitem__(self, name: str, value: Any) -> None:
        _public(name)
        Namespace.__setitem__(self, name, value)


class Counted(NodeTransformer):
    """Puts a step into every loop round and a length check into every concatenation."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("step", [], node.lineno), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _call("concatenated", node.nodes, node.lineno)


class Sandbox(ImmutableSandboxedEnvironment):
    """trim_blocks, lstrip_blocks, loop controls and `generation` as in transformers; see the limits above."""

    intercepted_binops = frozenset(["*", "**", "+", "%"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
        self.globals |= {"dict": _Dict(), "namespace": SafeNamespace}
        self.globals.pop("lipsum")
        for name in COUNTING:
            self.filters[name] = _limited(name, self.filters[name])

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = Counted().visit(super()._parse(source, name, filename))
        return tree

    def step(self) -> str:
        return _SPENT.get().step()

    def concatenated(self, *parts: Any) -> str:
        texts = [str(part) for part in parts]
        _SPENT.get().fits(sum(map(len, texts)))
        return "".join(texts)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        # Jinja prints nothing for these and refuses only their use; a template that reaches for them is refused at once.
        if attribute.startswith("_"):
            raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r} object")
        return super().unsafe_undefined(obj, attribute)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        made = super().wrap_str_format(value)
        if made is not None:
            _narrow(value.__self__)
        return made

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for a, b in ((left, right), (right, left)):
                if isinstance(a, str | list | tuple) and isinstance(b, int):
                    _SPENT.get().fits(len(a) * b)
        elif operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            _SPENT.get().fits(len(left) + len(right))
        elif operator == "%" and isinstance(left, str):
            _narrow(left)
        if operator in ("*", "**") and all(isinstance(x, int) and abs(x) > NUMBER for x in (left, right)):
            raise Stopped("numbers that large")
        if operator == "**" and isinstance(right, int) and abs(right) > 1000:
            raise Stopped("a power that large")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805, as jinja2 names them
        __self.step()
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str):
            _check(name, owner, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)


class _Dict:
    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _public(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")


def _call(method: str, args: list[nodes.Expr], line: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method, lineno=line), args, [], None, None, lineno=line)


def _narrow(text: str) -> None:
    if WIDTH.search(text):
        raise Stopped("a format width that large")


def _check(name: str, owner: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    values = [*args, *kwargs.values()]
    if name in PADDING and any(isinstance(x, int) and x > NUMBER for x in values):
        raise Stopped("a width that large")
    if name == "replace" and len(values) > 1 and all(isinstance(x, str) for x in values[:2]):
        _SPENT.get().fits(len(owner) + owner.count(values[0]) * len(values[1]))
    if name == "join" and values and isinstance(values[0], list | tuple):
        _SPENT.get().fits(sum(len(str(x)) + len(owner) for x in values[0]))


def _limited(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(filter_)
    def run(*args: Any, **kwargs: Any) -> Any:
        _SPENT.get().step()
        values = [*args, *kwargs.values()]
        if any(isinstance(x, int) and abs(x) > NUMBER for x in values[1:]) and name not in ("filesizeformat", "join"):
            raise Stopped(f"a number that large for the filter {name}")
        texts = [x for x in values if isinstance(x, str)]
        if name == "replace" and len(texts) > 2:
            _SPENT.get().fits(len(texts[0]) + texts[0].count(texts[1]) * len(texts[2]))
        if name == "format" and texts:
            _narrow(texts[0])
        if name == "join" and texts and (lists := [x for x in values if isinstance(x, list | tuple)]):
            _SPENT.get().fits(sum(len(str(x)) + len(texts[-1]) for x in lists[0]))
        return filter_(*args, **kwargs)
    return run
