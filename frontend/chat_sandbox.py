"""The Jinja environment of chat templates: transformers' dialect, with limits on work and text."""
from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from uaii.frontend.chat_limits import NUMBER, Stopped, formatted, limited, method, rendering, spent


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

    def __repr__(self) -> str:
        return "<Namespace>"


class Counted(NodeTransformer):
    """Puts a step into every loop round, and a check around everything that makes a longer or a deeper value."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        plain = sum(len(text.data) for child in node.body for text in child.find_all(nodes.TemplateData))
        node.body.insert(0, nodes.ExprStmt(_call("step", [nodes.Const(plain)], node.lineno), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _call("concatenated", node.nodes, node.lineno)

    def visit_FilterBlock(self, node: nodes.FilterBlock) -> nodes.FilterBlock:
        self.generic_visit(node)
        node.filter = nodes.Filter(node.filter, "written", [], [], None, None, lineno=node.lineno)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        return self._held(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        return self._held(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        return self._held(node) if node.ctx == "load" else node

    def _held(self, node: nodes.Expr) -> nodes.Expr:
        self.generic_visit(node)
        return _call("held", [node], node.lineno)


class Sandbox(ImmutableSandboxedEnvironment):
    """trim_blocks, lstrip_blocks, loop controls and `generation` as in transformers; see chat_limits."""

    intercepted_binops = frozenset(["*", "**", "+", "%"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols], finalize=_written)
        self.globals |= {"dict": _Dict(), "namespace": SafeNamespace}
        self.globals.pop("lipsum")
        self.filters = {name: limited(name, filter_) for name, filter_ in {**self.filters, "written": _written}.items()}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = Counted().visit(super()._parse(source, name, filename))
        return tree

    def _load_template(self, name: Any, globals: Any) -> Any:
        raise SecurityError(f"it asks for another template, {name!r}")

    def step(self, plain: int) -> str:
        spent().step()
        spent().write(plain)
        return ""

    def concatenated(self, *parts: Any) -> str:
        texts = [str(part) for part in parts]
        spent().fits(sum(map(len, texts)))
        return "".join(texts)

    def held(self, value: Any) -> Any:
        spent().holds(value)
        return value

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        # Jinja prints nothing for these and refuses only their use; a template that reaches for them is refused at once.
        if attribute.startswith("_"):
            raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r} object")
        return super().unsafe_undefined(obj, attribute)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        made = super().wrap_str_format(value)
        if made is None:
            return None

        @wraps(made)
        def run(*args: Any, **kwargs: Any) -> str:
            formatted(value.__self__, *args, *kwargs.values())
            return made(*args, **kwargs)
        return run

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for a, b in ((left, right), (right, left)):
                if isinstance(a, str | list | tuple) and isinstance(b, int):
                    spent().holds(a, max(b, 0))
        elif operator == "+" and isinstance(left, str) and isinstance(right, str):
            spent().fits(len(left) + len(right))
        elif operator == "+" and isinstance(left, list | tuple) and isinstance(right, list | tuple):
            spent().holds([left, right])
        elif operator == "%" and isinstance(left, str):
            formatted(left, right)
        if operator in ("*", "**") and all(isinstance(x, int) and abs(x) > NUMBER for x in (left, right)):
            raise Stopped("numbers that large")
        if operator == "**" and isinstance(right, int) and abs(right) > 1000:
            raise Stopped("a power that large")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805, as jinja2 names them
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if owner is __self:  # its own checks
            return super().call(__context, __obj, *args, **kwargs)
        spent().step()
        if isinstance(owner, str):
            args = method(name, owner, args, kwargs)
        elif not isinstance(__obj, Macro) or __obj.catch_varargs or __obj.catch_kwargs:
            spent().holds([*args, *kwargs.values()])  # what gathers its arguments holds them
        return super().call(__context, __obj, *args, **kwargs)


class _Dict:
    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _written(value: Any) -> Any:
    if (spending := rendering()) is not None:
        spending.write(len(value) if isinstance(value, str) else 0)
    return value


def _public(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")


def _call(method: str, args: list[nodes.Expr], line: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method, lineno=line), args, [], None, None, lineno=line)
