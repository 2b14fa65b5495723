"""ALiBi, which no attention kernel here adds: refused under the one name it is searched by."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uaii.ir.diag import Unsupported
from uaii.ir.loc import Key

SAYS = (("position_embedding_type", "alibi"), ("alibi", True))


def refuse_alibi(file: str, config: Mapping[str, Any]) -> None:
    """Raises Unsupported F112 when a configuration asks for ALiBi, whatever the family."""
    for name, value in SAYS:
        if config.get(name) == value:
            raise Unsupported("F112", "unsupported position_embedding_type=alibi", Key(file, name, str(value).lower()),
                              why="a bias per head and distance would be left out of every attention score",
                              hint="the checkpoints of these families that rotate are supported")
