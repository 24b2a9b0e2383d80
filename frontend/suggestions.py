"""Unknown argument names of a call: an error that says which there are, and which one was probably meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from ..suggestions import did_you_mean
from .errors import InvalidProgramError

P = ParamSpec("P")
T = TypeVar("T")


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
