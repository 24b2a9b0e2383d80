"""What an SDK raised, in words: what failed, with which status, and what to do."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InvalidProgramError
from .errors import BackendCallError

_ADVICE: Mapping[int, str] = {
    400: "the request is not one this model takes; see the message",
    401: "check api_key",
    403: "this key may not use this model",
    404: "check model_name and base_url",
    408: "raise timeout, or ask for less",
    413: "the prompt is too long for the server",
    422: "the request is not one this model takes; see the message",
    429: "lower max_concurrency, raise max_retries, or wait",
    529: "the provider is overloaded: raise max_retries, or wait",
}


def missing_package(backend: str, package: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The SDK of an API is not installed. Only who makes the backend needs it."""
    return ModuleNotFoundError(
        f"the {backend} backend needs a missing package: in ramet's checkout, pip install '.[{package}]' ({error})"
    )


def status_error(where: str, status: int, message: str, headers: Mapping[str, str]) -> BackendCallError:
    """The server refused a call."""
    advice = _ADVICE.get(status, "the server failed; raise max_retries, or look at its log" if status >= 500 else "")
    return BackendCallError(
        f"{where} answered HTTP {status}: {message[:2000]}" + (f" ({advice})" if advice else ""),
        status=status,
        retry_after_s=_seconds(headers.get("retry-after")),
    )


def timeout_error(where: str, timeout: float) -> BackendCallError:
    return BackendCallError(f"{where} sent nothing for {timeout:g} s: raise timeout=, or ask for less")


def connection_error(where: str, error: BaseException) -> BackendCallError:
    """There is no connection, or it broke."""
    cause = error.__cause__ or error
    return BackendCallError(
        f"the connection to {where} failed ({type(cause).__name__}: {cause}): check base_url, and that the server runs"
    )


def broken_stream_error(where: str, text: str) -> BackendCallError:
    return BackendCallError(
        f"{where} ended the stream before the text was complete, after {len(text)} characters; run the program again"
    )


def withheld_error(where: str, reason: str, text: str) -> BackendCallError:
    """The model or its provider does not give the text."""
    return BackendCallError(f"{where} gave no text ({reason}): change the prompt; there was {text[:200]!r}")


def checked_timeout(timeout: float) -> float:
    """
    Raises:
        InvalidProgramError: not a positive number.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0.0 < timeout < 1e6:
        raise InvalidProgramError(f"timeout={timeout!r} must be a number of seconds above 0")
    return float(timeout)


def checked_retries(max_retries: int) -> int:
    """
    Raises:
        InvalidProgramError: not a number from 0 to 100.
    """
    if isinstance(max_retries, bool) or not isinstance(max_retries, int) or not 0 <= max_retries <= 100:
        raise InvalidProgramError(f"max_retries={max_retries!r} must be an integer from 0 to 100")
    return max_retries


def _seconds(value: str | None) -> float | None:
    try:
        return None if value is None else max(0.0, float(value))
    except ValueError:  # a date
        return None
