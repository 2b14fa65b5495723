"""Ids of conversations live against transformers' apply_chat_template, where no message holds a control token."""
from __future__ import annotations

import json
from typing import Any

import pytest
from chat_cases import CONVERSATIONS, TEMPLATES
from tiny_tokenizers import t0

from uaii.compiler import Artifact
from uaii.frontend.chat_ids import Conversations
from uaii.frontend.checkpoint import TokenizerFiles
from uaii.frontend.tokenizer.text import Tokenizer
from uaii.ir.diag import Diagnostic
from uaii.model import load


def judged(judge: Any, messages: list[Any], tools: list[Any] | None) -> list[int] | None:
    try:
        return list(judge.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=False))
    except Exception:  # whatever a template raises counts as its refusal
        return None


def ours(made: Conversations, messages: list[Any], tools: list[Any] | None) -> list[int] | None:
    try:
        return made.encode(messages, tools=tools).ids
    except Diagnostic:
        return None


@pytest.mark.reference
@pytest.mark.parametrize("template", sorted(path.stem for path in TEMPLATES.glob("*.jinja")))
def test_real_templates_over_a_small_tokenizer(template: str) -> None:
    from tokenizers import Tokenizer as Library
    from transformers import PreTrainedTokenizerFast

    spec = json.dumps(t0(bos=True))
    files = TokenizerFiles("tiny", spec, {}, template=(TEMPLATES / f"{template}.jinja").read_text("utf-8"), bos_id=1, eos_id=2)
    judge = PreTrainedTokenizerFast(tokenizer_object=Library.from_str(spec), chat_template=files.template, bos_token="<|bos|>",
                                    eos_token="<|end|>")
    made = Conversations(Tokenizer(files))
    wanted = {name: judged(judge, *said) for name, said in CONVERSATIONS.items()}
    assert {name: ours(made, *said) for name, said in CONVERSATIONS.items()} == wanted and any(wanted.values())


@pytest.mark.reference
def test_a_real_artifact(smollm2_artifact: Artifact) -> None:
    from transformers import AutoTokenizer

    judge = AutoTokenizer.from_pretrained(smollm2_artifact.folder)
    made = load(smollm2_artifact.folder).conversations
    for messages, tools in CONVERSATIONS.values():
        assert ours(made, messages, tools) == judged(judge, messages, tools)
