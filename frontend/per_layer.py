"""GGUF keys that may state one number for all layers or list one for each (llama.cpp's get_key_or_arr)."""
from __future__ import annotations

import json
from typing import Any

from uaii.ir import loc as L
from uaii.ir.diag import Malformed, Unsupported

PER_LAYER = ("attention.head_count", "attention.head_count_kv", "feed_forward_length", "expert_feed_forward_length",
             "expert_used_count")


def one_for_all(name: str, value: Any, layers: Any, where: L.Key) -> Any:
    """The value that every layer has; anything but a list of a per-layer key is returned as it is.

    Raises Malformed F104 when the list is not of `layers` entries, Unsupported F103 when they differ.
    """
    if name not in PER_LAYER or not isinstance(value, list):
        return value
    if len(value) != layers:
        raise Malformed("F104", f"{name} must list one number for each of {layers} layers, lists {len(value)}", where)
    if any(v != value[0] for v in value):
        raise Unsupported("F103", f"unsupported {name}={json.dumps(value)[:80]}: the layers differ in it", where,
                          why="every layer of a family is built to the same sizes",
                          hint="take a model whose layers are alike; pruned models often are not")
    return value[0]
