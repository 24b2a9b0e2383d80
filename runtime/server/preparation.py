"""Preparation: what a worker makes of one HTTP request.

It ends when nobody wants it any more, or when its time is over: others want its place, and the worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ..request import Request
from .errors import ApiError

MAX_PREPARE_S = 10.0
"""For the grammars of one HTTP request, all together; each of them may take a second. What was compiled for it, or for
another one, lately is not compiled again."""


class GivenUpError(Exception):
    """Nobody wants what is prepared any more, so nobody is told."""


class Preparation:
    """Checks and completes the engine's requests one by one. On one worker.

    Args:
        complete: as LLM.prepare.
        is_given_up: nobody wants them any more. It is asked between any two parts of the work.
    """

    def __init__(self, complete: Callable[[Request], Request], is_given_up: Callable[[], bool]) -> None:
        self._complete = complete
        self._is_given_up = is_given_up
        self._num_seconds = 0.0

    def go_on(self) -> None:
        """To be called before each part of the work that takes a while.

        Raises:
            GivenUpError: there is no use in going on.
        """
        if self._is_given_up():
            raise GivenUpError

    def prepare(self, request: Request) -> Request:
        """The request checked and completed, its constraint compiled. Does little to one that was prepared before.

        Raises:
            GivenUpError: there is no use in going on.
            InvalidRequestError: it is refused.
            ApiError: 400, the requests before it took all the time there is.
        """
        self.go_on()
        if self._num_seconds > MAX_PREPARE_S:
            raise ApiError(
                400,
                f"the grammars of this request take more than {MAX_PREPARE_S:g} s to compile, all together: make them "
                "smaller, or send fewer different ones at a time",
                param=_field_of(request),
            )
        began = time.monotonic()
        try:
            return self._complete(request)
        finally:
            self._num_seconds += time.monotonic() - began


def _field_of(request: Request) -> str | None:
    """Of the client's that its grammar comes from."""
    if request.constraint is not None:
        return "tools"
    spec = request.sampling_params.grammar_spec
    return None if spec is None else spec.kind
