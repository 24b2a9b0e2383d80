"""Unknown names: which one was probably meant. For both sides, the language and the engine."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import wraps
from typing import Any, TypeVar, cast

T = TypeVar("T")


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.7) -> str:
    """`; did you mean 'x'?` for the closest of the known names, or `;` if none is close.

    Args:
        cutoff: how close, from 0 to 1 for the same name.
    """
    closest = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {closest[0]!r}?" if closest else ";"


def refuses_unknown_fields(error: type[Exception]) -> Callable[[type[T]], type[T]]:
    """Decorator for a dataclass: a keyword that is no field of it raises `error` with a suggestion. Mutates the class.

    A bare TypeError would say neither which fields there are nor which was meant.
    """

    def decorate(cls: type[T]) -> type[T]:
        init: Callable[..., None] = cls.__init__
        known = {field.name for field in fields(cast(Any, cls)) if field.init}

        @wraps(init)
        def checked(self: T, *args: Any, **values: Any) -> None:
            if not values.keys() <= known:
                name = next(name for name in values if name not in known)
                names = ", ".join(sorted(known))
                raise error(f"{cls.__name__} has no {name!r}{did_you_mean(name, sorted(known))} it takes {names}")
            init(self, *args, **values)

        cls.__init__ = checked  # type: ignore[method-assign, assignment]
        return cls

    return decorate
