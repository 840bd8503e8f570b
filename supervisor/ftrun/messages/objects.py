"""JSON objects that others have written."""

import json
from typing import Any


def load(content: bytes, limit: int) -> dict[str, Any]:
    """ValueError, in a few words, for what is no object, or has more than `limit` bytes."""
    if len(content) > limit:
        raise ValueError(f"more than {limit} bytes")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("no JSON") from None
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found
