"""How deep JSON may be nested where it comes from outside."""

from __future__ import annotations

MAX_JSON_DEPTH = 64
"""Of lists and objects in each other. What walks through them calls itself a few times for each, and Python has room
for a thousand calls."""

_CONTAINERS = (dict, list)


def is_too_deep(value: object) -> bool:
    """Whether a parsed JSON value is nested deeper than MAX_JSON_DEPTH. Cost: a look at everything in it."""
    level = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(MAX_JSON_DEPTH):
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, _CONTAINERS)
        ]
        if not level:
            return False
    return True
