"""JSON objects from other programs."""

import json
from typing import Any


def load(content: bytes, limit: int) -> dict[str, Any]:
    """The object, or ValueError if the content is not a JSON object or has more than `limit` bytes."""
    if len(content) > limit:
        raise ValueError(f"more than {limit} bytes")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found
