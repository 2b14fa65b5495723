"""What transformers renders from a chat template, on the fixed day of the tests."""
from __future__ import annotations

import datetime
from typing import Any

from chat_cases import DAY


def rendered(template: str, messages: list[Any], tools: list[Any] | None, **tokens: Any) -> str | None:
    """The text, or None when the template fails or refuses."""
    from transformers.utils import chat_template_utils as judge

    class Fixed(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime.datetime:
            return datetime.datetime.combine(DAY, datetime.time())

    real, judge.datetime = judge.datetime, Fixed
    try:
        chat = judge._normalize_chat_messages(messages)
        text: str = judge.render_jinja_template([chat], tools=tools, chat_template=template, add_generation_prompt=True,
                                                **tokens)[0][0]
        return text
    except Exception:  # whatever a template raises counts as its refusal
        return None
    finally:
        judge.datetime = real
