"""The errors a user of the runtime can meet. Each message says what, which value, which limit, and what to do."""

from __future__ import annotations


class RametError(Exception):
    """Base of every error the runtime raises on purpose."""


class InvalidRequestError(RametError, ValueError):
    """A request is malformed or can never be served; it was refused at submit and nothing was queued.

    Attributes:
        field: what is at fault, "prompt" or a field of SamplingParams, where the message does not begin with its name.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ContextLimitError(InvalidRequestError):
    """The prompt, and what is to be generated, are longer together than the model's context."""


class InvalidConfigError(RametError, ValueError):
    """An engine option is out of range or contradicts another one."""


class RequestFailedError(RametError, RuntimeError):
    """This request failed while it ran; others are unaffected."""


class RequestUnmetError(RequestFailedError):
    """What this request asks for cannot be done, which came to light while it ran: a constraint too complex to go on
    with, penalties that no number can hold, a text that was to be complete and is cut off.

    Attributes:
        reason: which field, which value, what to do; without the request's id.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class RequestAbortedError(RequestFailedError):
    """The request was cancelled before it finished."""


class PrefixesKeptError(RametError, RuntimeError):
    """The prefix cache was to be forgotten, and is in memory, but its directory keeps some of it; the message says why,
    and what to do."""


class TensorParallelError(RametError, RuntimeError):
    """A process that computes a part of the model is gone, or no longer in step; the message names it. The engine can
    compute nothing more: make a new LLM."""


class EngineStoppedError(RametError, RuntimeError):
    """The engine was shut down; it takes no more requests."""
