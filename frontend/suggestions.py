"""Unknown argument names: an error that says which names there are, and which one was probably meant."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

from .errors import InvalidProgramError

P = ParamSpec("P")
T = TypeVar("T")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest of the known names, or nothing if none is close."""
    closest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"; did you mean {closest[0]!r}?" if closest else ";"


def checks_names(build: Callable[P, T]) -> Callable[P, T]:
    """Decorator: a keyword argument the function does not have raises InvalidProgramError with a suggestion."""
    known = list(inspect.signature(build).parameters)

    @wraps(build)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in known:
                raise InvalidProgramError(
                    f"{build.__name__} got an unknown argument {name!r}{did_you_mean(name, known)} "
                    f"it takes {', '.join(known)}"
                )
        return build(*args, **kwargs)

    return checked
