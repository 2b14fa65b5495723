"""Chat templates: transformers' text, its dialect, refusals in the template's words, and hostile templates stopped."""
from __future__ import annotations

import json
from typing import Any

import pytest
from chat_cases import CONVERSATIONS, DAY, TEMPLATES, TOKENS

from uaii.frontend import chat_limits
from uaii.frontend.chat import choose, render
from uaii.ir.diag import Diagnostic, Malformed, Unsupported

GOLDENS = json.loads((TEMPLATES / "goldens.json").read_text("utf-8"))
USER = [{"role": "user", "content": "x"}]


def rendered(template: str | None, messages: Any = USER, **options: Any) -> str:
    return render(template, messages, **{"bos_token": "<s>", "eos_token": "</s>"} | options)


def refusal(template: str | None, messages: Any = USER, **options: Any) -> Diagnostic:
    with pytest.raises(Diagnostic) as err:
        rendered(template, messages, **options)
    return err.value


def outcome(template: str, name: str) -> str | None:
    messages, tools = CONVERSATIONS[name]
    try:
        return render(template, messages, tools=tools, date=DAY, **TOKENS)
    except Malformed:
        return None


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("template", GOLDENS)
def test_real_templates_give_the_text_of_transformers(template: str, name: str) -> None:
    assert outcome((TEMPLATES / f"{template}.jinja").read_text("utf-8"), name) == GOLDENS[template][name]


@pytest.mark.parametrize(("template", "text"), [
    ("{% for m in messages %}x{% break %}{% endfor %}", "x"), ("{% for m in messages %}x{% continue %}y{% endfor %}", "x"),
    ("{% generation %}a{% endgeneration %}", "a"), ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
    ("{% if strftime_now is defined %}yes{% endif %}", "yes"), ("{{ {'é':'<a>'}|tojson }}", '{"é": "<a>"}'),
    ("{{ {'a':[1]}|tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'), ("A\n{% if true %}\nB\n{% endif %}\nC", "A\nB\nC"),
    ("A\n   {% if true %}B{% endif %}", "A\nB"), ("{{ bos_token ~ eos_token ~ 1 }}", "<s></s>1"),
    ("{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}", "TrueTrueTrue"),
    ("{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}", "2"), ("{{ dict(a=1).a }}", "1"),
    ("{{ 'a{}b'.format(1) + '%02d' % 7 }}", "a1b07"), ("{{ ['a','b']|join('-') }}{{ 'abc'.replace('b','xx') }}", "a-baxxc"),
    ("{{ enable_thinking }}", "False")])
def test_the_dialect(template: str, text: str) -> None:
    assert rendered(template, date=DAY, enable_thinking=False) == text


def test_messages_as_transformers_passes_them() -> None:
    template = "{% for m in messages %}{{ m.content is defined }} {{ m.thinking }} {{ m.reasoning_content }}{% endfor %}"
    assert rendered(template, [{"role": "a", "content": None, "reasoning": "r"}]) == "False r r"


@pytest.mark.parametrize("template", [None, "", "  \n"])
def test_no_template(template: str | None) -> None:
    err = refusal(template)
    assert isinstance(err, Unsupported) and err.says == "no chat template; use a raw prompt or give one"


def test_named_templates() -> None:
    assert choose("D", {"tool_use": "T"}, None) == "D" and choose("D", {"tool_use": "T"}, [{}]) == "T"
    assert choose("D", {}, [{}]) == "D" and choose(None, {"tool_use": "T"}, None) is None


def test_the_templates_own_refusal_is_shown() -> None:
    err = refusal("ok\n{{ raise_exception('System role not supported') }}")
    assert isinstance(err, Malformed) and err.code == "K534" and "System role not supported" in err.says and "line 2" in str(err)


@pytest.mark.parametrize(("template", "code", "line"), [
    ("a\n{% if %}", "K533", 2), ("{{ messages[0].nope.x }}", "K535", 1), ("\n\n{{ 1 + 'a' }}", "K535", 3),
    ("{{ messages|nofilter }}", "K533", 1), ("{{ nofunction() }}", "K535", 1)])
def test_a_template_that_fails_is_named_with_its_line(template: str, code: str, line: int) -> None:
    err = refusal(template)
    assert isinstance(err, Malformed) and err.code == code and f"chat template: line {line}" in str(err)


def test_messages_must_be_objects() -> None:
    assert refusal("x", ["hello"]).code == "K535"


@pytest.mark.parametrize("template", [
    "{{ ''.__class__ }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ cycler.__init__.__globals__ }}",
    "{{ messages.append(1) }}", "{{ messages[0].update({}) }}", "{{ namespace(__init__=1) }}", "{{ ''|attr('__class__') }}",
    "{{ '{0.__class__}'.format('') }}", "{{ raise_exception.__globals__ }}", "{{ ''['__class__'] }}",
    "{{ messages|map(attribute='__class__')|list }}", "{{ '{a.__class__}'.format_map({'a': 1}) }}", "{{ self.__init__ }}",
    "{% include '/etc/passwd' %}", "{% import 'os' as os %}", "{% from 'os' import path %}", "{% extends 'x' %}"])
def test_templates_that_reach_out_are_refused(template: str) -> None:
    err = refusal(template)
    assert isinstance(err, Unsupported) and err.code == "K531"


DEEPER = "{%% set n = namespace(s=[1]) %%}{%% for i in range(60) %%}{%% set n.s = %s %%}{%% endfor %%}{{ n.s }}"
ENDLESS = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "{% for i in range(10**12) %}{% endfor %}",
    "{{ range(10**9)|list }}", "{% for i in range(99999) %}{{ range(99999)|sum }}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% set b = 'x' * 1900000 %}{% for i in range(99999) %}{% set c = b|upper %}{% endfor %}",
    "{% set n = namespace(s=3) %}{% for i in range(99999) %}{% set n.s = n.s + n.s %}{% endfor %}"]
LARGE = [
    "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{{ 'a' * 10**10 }}", "{{ ['a'] * 10**9 }}", "{{ (['x' * 1900000] * 99999)|string }}", "{{ '%1000000000d' % 1 }}",
    "{{ '{:1000000000}'.format(1) }}", "{{ '{0:{1}}'.format('a', 999999999) }}", "{{ '%*d' % (10**9, 1) }}",
    "{{ ('{0}' * 600000).format('x' * 1000000) }}", "{{ ('%(a)s' * 300000) % {'a': 'x' * 1000000} }}",
    "{{ 'x'|center(10**9) }}", "{{ 'x'.ljust(10**9) }}", "{{ ('\t' * 100000).expandtabs(100000) }}", "{{ 10 ** 10000000 }}",
    "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}", "{{ ('x' * 1000000)|replace('x', 'y' * 1000000) }}",
    "{{ ['x' * 1900000]|replace('x', 'y' * 1000000) }}", "{{ ('a' * 1000000).translate({97: 'y' * 1000000}) }}",
    "{{ ('x' * 900000).join(['a', 'b', 'c', 'd']) }}", "{{ ('x' * 900000).join(range(99999)|map('string')) }}",
    "{{ range(99999)|map('string')|join('x' * 900000) }}", "{{ ('x' * 1000000)|join('y' * 1000) }}",
    "{{ ('\n' * 1000000)|indent(900000) }}", "{{ ('<' * 1000000)|urlize }}", "{{ ('a ' * 900000)|wordwrap(1) }}",
    "{{ [1]|tojson(indent=10000000) }}", "{{ ([1] * 9999)|tojson(separators=('x' * 100000, ':')) }}",
    "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "{% for i in range(99999) %}" + "y" * 1000 + "{% endfor %}",
    "{% set x %}{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}{% endset %}",
    "{% set x %}{% for i in range(999) %}{% filter upper %}" + "y" * 30000 + "{% endfilter %}{% endfor %}{% endset %}",
    *(DEEPER % step for step in (
        "[n.s, n.s]", "(n.s, n.s)", "{'a': n.s, 'b': n.s}", "dict(a=n.s, b=n.s)", "(n.s * 2)|batch(2)|list", "n.s + n.s",
        "cycler(n.s, n.s).items", "{'a': n.s, 'b': n.s}.items()|list", "dict.fromkeys(['a', 'b'], n.s)")),
    "{% set n = namespace(s=[1]) %}{% macro f() %}{% set n.s = varargs %}{% endmacro %}"
    "{% for i in range(60) %}{% set x = f(n.s, n.s) %}{% endfor %}", " " * (1 << 16) + "{{ 1 }}"]


@pytest.mark.parametrize("template", [*ENDLESS, *LARGE], ids=lambda t: t[:60])
def test_templates_that_never_end_are_stopped(template: str) -> None:
    """Each within a second; without its limit it takes hours, or all memory."""
    err = refusal(template)
    assert isinstance(err, Unsupported) and err.code == "K532"


def test_values_that_hold_one_another_many_times_are_written_as_they_are() -> None:
    assert rendered("{% set n = namespace(s=[1]) %}{% for i in range(3) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}") == \
        "[[[[1], [1]], [[1], [1]]], [[[1], [1]], [[1], [1]]]]"


def test_steps_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_limits, "STEPS", 100)
    assert rendered("{% for i in range(99) %}{% endfor %}") == ""
    assert "more than 100 steps" in refusal("{% for i in range(101) %}{% endfor %}").says


def test_a_long_conversation_is_not_stopped() -> None:
    said = [{"role": "user", "content": "word " * 200}] * 3000
    assert len(rendered("{% for m in messages %}{{ m.role + m.content|trim }}{% endfor %}", said)) == 3000 * 1003


def test_a_caller_s_object_is_out_of_reach() -> None:
    assert rendered("{{ messages[0].content }}", [{"role": "user", "content": object()}]) == "<object>"
