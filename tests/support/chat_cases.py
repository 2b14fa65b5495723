"""Conversations that chat templates are tried on."""
from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).parents[1] / "data" / "chat_templates"
DAY = datetime.date(2024, 7, 26)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather <b>now</b> in é",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "City"}, "unit": {"type": "string", "enum": ["c", "f"]}}}}}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "unit": "c"}}}
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[Any] | None]] = {
    "system": ([{"role": "system", "content": "Be <b>brief</b>."}, {"role": "user", "content": "Héllo 世界"}], None),
    "turns": ([{"role": "user", "content": " Hi "}, {"role": "assistant", "content": "Hello!"},
               {"role": "user", "content": "Bye\n\nnow"}], None),
    "reasoning": ([{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2", "reasoning_content": "easy"},
                   {"role": "user", "content": "sure?"}], None),
    "tools": ([{"role": "user", "content": "Weather?"}], [WEATHER]),
    "tool call": ([{"role": "user", "content": "Weather in Zürich?"}, {"role": "assistant", "content": "", "tool_calls": [CALL]},
                   {"role": "tool", "tool_call_id": "abcdefghi", "name": "get_weather", "content": "{\"t\": 20}"},
                   {"role": "assistant", "content": "20 °C"}, {"role": "user", "content": "thanks"}], [WEATHER]),
    "null content": ([{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": None, "tool_calls": [CALL]},
                      {"role": "tool", "tool_call_id": "abcdefghi", "name": "get_weather", "content": "20"}], [WEATHER]),
}
