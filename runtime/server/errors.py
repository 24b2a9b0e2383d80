"""ApiError: what a client is told when a request fails, and how each family of endpoints writes it."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from ...chat_message import ChatTemplateError
from ...grammar_spec import InvalidGrammarSpecError
from ...json_depth import MAX_JSON_DEPTH
from ...sampling_params import InvalidSamplingParamsError
from ..errors import ContextLimitError, EngineStoppedError, InvalidRequestError, RequestAbortedError, RequestUnmetError

logger = logging.getLogger(__name__)
Json = dict[str, Any]
_NAMED_FAULTS = (InvalidSamplingParamsError, InvalidGrammarSpecError, ChatTemplateError, UnicodeEncodeError)
"""Of a request, whose messages name the field; the last is that a text of it has half of a surrogate pair."""
_NUM_END_LINES = 60
"""Of a traceback, at its beginning and at its end: one of endless calls has thousands."""
CONTEXT_CODE = "context_length_exceeded"
"""Clients that make a conversation shorter and try again know OpenAI's code, and of Anthropic's error the text."""


class ApiError(Exception):
    """An answer other than 2xx.

    Attributes:
        status: of HTTP.
        message: for people: what, which value, which limit, what to do.
        param: the field at fault, as "messages[2].content"; None if it is none.
        code: for programs, such as "model_not_found".
        retry_after_s: when trying again may help.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s


def shutting_down() -> ApiError:
    """The answer to what comes, or is not done, when the server ends."""
    return ApiError(503, "the server is shutting down", code="shutting_down", retry_after_s=5.0)


def timed_out(limit_s: float | None) -> ApiError:
    """The answer to a request that took too long."""
    return ApiError(504, f"the request took more than {limit_s:g} s, the limit of this server", code="timeout")


def too_deep(what: str, param: str | None = None) -> ApiError:
    """The answer to JSON that is nested too deeply."""
    message = f"{what} is nested too deeply: lists and objects may be in each other {MAX_JSON_DEPTH} times"
    return ApiError(400, message, param=param)


def as_api_error(error: BaseException, request_id: str) -> ApiError:
    """What a client is told of an error. Whatever nobody raised on purpose tells nothing of the server's inside.

    Args:
        request_id: the one that the client has been given.
    """
    message = f"request {request_id} failed inside the server; its log says why"
    return foreseen(error) or ApiError(500, message, code="internal_error")


def foreseen(error: BaseException) -> ApiError | None:
    """What a client is told of an error that was raised to be told; None of any other, such as a ValueError that no
    client is to blame for."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineStoppedError):
        message = "the engine has stopped, and the request with it; the server must be started anew"
        return ApiError(503, message, code="engine_stopped", retry_after_s=5.0)
    if isinstance(error, RequestAbortedError):
        return ApiError(499, str(error), code="request_aborted")
    if isinstance(error, RequestUnmetError):
        return ApiError(400, error.reason, param=_field_named(error.reason), code="request_failed")
    if isinstance(error, RecursionError):  # whoever walked through the body was not the one to blame
        return too_deep("the body")
    if isinstance(error, InvalidRequestError):
        code = CONTEXT_CODE if isinstance(error, ContextLimitError) else None
        return ApiError(400, str(error), param=error.field or _field_named(str(error)), code=code)
    if isinstance(error, _NAMED_FAULTS):
        param = "messages" if isinstance(error, ChatTemplateError) else None
        return ApiError(400, str(error), param=_field_named(str(error)) or param)
    return None


def reported(error: BaseException, request_id: str) -> ApiError:
    """`as_api_error`; and the log is told why, once, of what the client is told no more of than that it failed."""
    failure = as_api_error(error, request_id)
    if failure.code == "internal_error":
        lines = "".join(traceback.format_exception(error)).splitlines()
        left_out = [f"  ... {len(lines) - 2 * _NUM_END_LINES} lines ..."] if len(lines) > 2 * _NUM_END_LINES else []
        shown = [*lines[:_NUM_END_LINES], *left_out, *lines[-_NUM_END_LINES:]] if left_out else lines
        logger.error("request %s failed: %.1000s\n%s", request_id, error, "\n".join(line[:1000] for line in shown))
    return failure


def openai_body(error: ApiError) -> Json:
    """{"error": {"message", "type", "param", "code"}}"""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kinds |= {505: "invalid_request_error"}
    kind = kinds.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def anthropic_body(error: ApiError) -> Json:
    """{"type": "error", "error": {"type", "message"}}"""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"}
    kinds |= {429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error"}
    kind = kinds.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    message = f"prompt is too long: {error.message}" if error.code == CONTEXT_CODE else error.message
    return {"type": "error", "error": {"type": kind, "message": message}}


ERROR_BODIES: Mapping[str, Callable[[ApiError], Json]] = {"/v1/messages": anthropic_body, "": openai_body}
"""By the beginning of a path; the first that fits is taken."""


def error_body(path: str, error: ApiError) -> Json:
    return next(render for prefix, render in ERROR_BODIES.items() if path.startswith(prefix))(error)


_FIELD = re.compile(r"((?:[A-Za-z_]\w*)(?:\.\w+|\[\d+\])*)(?:=| has | of role )")


def _field_named(message: str) -> str | None:
    """Most of our messages begin with `field=value`, some with `field[3] has`."""
    found = _FIELD.match(message)
    return None if found is None else found[1]
