"""Lines that a helper says: one JSON object each, with an `event`."""

import json
from typing import Any, Final

LINE_LIMIT: Final = 65536


def message(line: bytes) -> dict[str, Any] | None:
    """None for whatever is no message."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None
