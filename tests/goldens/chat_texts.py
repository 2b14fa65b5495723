"""Makes tests/data/chat_templates/goldens.json: conversations as transformers 5.24 renders them.

Run from the repository root with the reference extra: PYTHONPATH=.:tests/support python tests/goldens/chat_texts.py
"""
from __future__ import annotations

import json

from chat_cases import CONVERSATIONS, TEMPLATES, TOKENS
from chat_oracle import rendered


def main() -> None:
    golden = {path.stem: {name: rendered(path.read_text("utf-8"), messages, tools, **TOKENS)
                          for name, (messages, tools) in CONVERSATIONS.items()}
              for path in sorted(TEMPLATES.glob("*.jinja"))}
    (TEMPLATES / "goldens.json").write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main()
