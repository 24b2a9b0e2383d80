"""ServerConfig: every option of the server, checked when it is built."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import InvalidConfigError
from .api_keys import named_keys

MIB = 1 << 20
MIN_HEADER_BYTES = 1024
"""With less, usual clients do not come in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Options of the server; those of the model and its engine are the LLM's.

    Attributes:
        host: address to listen on. Only this machine reaches the default.
        port: 0 takes a free one.
        api_keys: who may use it, as "KEY" or "NAME=KEY"; each key has a cache of its own. () lets everybody in. Of
            "NAME=KEY" the name has letters, digits, "-", "_" and "."; a key has 8 characters or more, "=" at its end
            included.
        admin_api_keys: keys that may also flush the cache, read metrics and watch the engine. () gives that right to
            the only one of `api_keys`, or to everybody if there are none; of several keys none has it.
        served_model_names: what clients may call the model; the first is what it answers by. () is the name that it
            was loaded by.
        max_body_bytes: of one request, of HTTP and of gRPC; larger ones get 413. Nothing else runs while a body is
            read as JSON: 8 MiB of token ids take a quarter of a second.
        max_header_bytes: of one HTTP request, its first line included; larger ones get 431. At least 1024.
        max_total_body_bytes: of all requests that are not answered yet; more get 429. What is made of a body takes
            many times its size, so this bounds the server's memory.
        max_n: samples of one request, `n` and `best_of` alike.
        max_prompts: prompts of one request.
        max_prompt_chars: of a prompt, and of all that one `/tokenize` is given: longer ones are refused before they are
            tokenised. `/detokenize` takes so many ids. None takes 32 for each token of the model's context.
        max_waiting_sequences: samples that may wait beyond those the engine runs at once; more get 429.
        max_stored_response_bytes: memory of each API key for responses that others may go on from
            (`previous_response_id`); 0 keeps none.
        max_connections: open at a time; more get 503.
        request_timeout_s: a request that takes longer is ended; None lets it take as long as it likes, and so
            does 0, which becomes None.
        header_timeout_s, body_timeout_s: a client that sends its request more slowly gets 408.
        write_timeout_s: a client that takes nothing of its answer for so long is cut off.
        drain_timeout_s: how long what runs may go on after SIGTERM.
        step_timeout_s: a step of the engine that takes longer makes `/health` say so, and new requests get 503. The
            default is for large models on slow CPUs: a false alarm costs a healthy server.
        log_requests: one line of the log for each, without its text and its key.
        allow_request_template: take chat templates out of requests (rendered in the sandbox all the same).
        allowed_origins: web pages that may call it from a browser, as "https://host" or "http://host:port", or "*" for
            all; turned into the spelling that browsers send.
        grpc_port: also speak gRPC there; None does not.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    admin_api_keys: tuple[str, ...] = ()
    served_model_names: tuple[str, ...] = ()
    max_body_bytes: int = 8 * MIB
    max_header_bytes: int = 32 << 10
    max_total_body_bytes: int = 64 * MIB
    max_n: int = 128
    max_prompts: int = 2048
    max_prompt_chars: int | None = None
    max_waiting_sequences: int = 512
    max_stored_response_bytes: int = 32 * MIB
    max_connections: int = 4096
    request_timeout_s: float | None = 600.0
    header_timeout_s: float = 30.0
    body_timeout_s: float = 60.0
    write_timeout_s: float = 60.0
    drain_timeout_s: float = 30.0
    step_timeout_s: float = 60.0
    log_requests: bool = False
    allow_request_template: bool = False
    allowed_origins: tuple[str, ...] = ()
    grpc_port: int | None = None

    @property
    def num_tenants(self) -> int:
        """1 without keys."""
        return max(len(self.api_keys) + len(self.admin_api_keys), 1)

    def __post_init__(self) -> None:
        if not isinstance(self.host, str) or not self.host:
            raise InvalidConfigError(f"host={self.host!r} must be an address such as '127.0.0.1'")
        _check_port("port", self.port)
        if self.grpc_port is not None:
            _check_port("grpc_port", self.grpc_port)
        for name in ("api_keys", "admin_api_keys", "served_model_names", "allowed_origins"):
            values = getattr(self, name)
            if not isinstance(values, tuple) or not all(isinstance(value, str) for value in values):
                raise InvalidConfigError(f"{name} must be a tuple of texts")
            if "" in values:
                raise InvalidConfigError(f"{name} has an empty text: leave it out")
        object.__setattr__(self, "allowed_origins", tuple(map(_as_browsers_send, self.allowed_origins)))
        _check_count("max_header_bytes", self.max_header_bytes, MIN_HEADER_BYTES)
        for name in ("max_body_bytes", "max_total_body_bytes"):
            _check_count(name, getattr(self, name), 1)
        for name in ("max_n", "max_prompts", "max_connections"):
            _check_count(name, getattr(self, name), 1)
        named_keys(self.api_keys, self.admin_api_keys)  # raises
        if self.max_prompt_chars is not None:
            _check_count("max_prompt_chars", self.max_prompt_chars, 1)
        for name in ("max_waiting_sequences", "max_stored_response_bytes"):
            _check_count(name, getattr(self, name), 0)
        for name in ("header_timeout_s", "body_timeout_s", "write_timeout_s", "step_timeout_s"):
            _check_seconds(name, getattr(self, name), is_zero_allowed=False)
        _check_seconds("drain_timeout_s", self.drain_timeout_s, is_zero_allowed=True)
        if self.request_timeout_s is not None:
            _check_seconds("request_timeout_s", self.request_timeout_s, is_zero_allowed=True)
            object.__setattr__(self, "request_timeout_s", self.request_timeout_s or None)


def _check_port(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 65535:
        raise InvalidConfigError(f"{name}={value!r} must be a port from 0 to 65535; 0 takes a free one")


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidConfigError(f"{name}={value!r} must be an integer of at least {least}")


def _check_seconds(name: str, value: object, *, is_zero_allowed: bool) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < float("inf") or (value == 0 and not is_zero_allowed):  # type: ignore[operator]
        raise InvalidConfigError(
            f"{name}={value!r} must be a number of seconds{', 0 or more' if is_zero_allowed else ' above 0'}"
        )


_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[\w.-]+)(?::([0-9]{1,5}))?", re.ASCII | re.IGNORECASE)
_USUAL_PORTS = {"http": "80", "https": "443"}


def _as_browsers_send(origin: str) -> str:
    """In small letters, without the usual port of its scheme: other spellings would never be met."""
    if origin == "*":
        return origin
    found = _ORIGIN.fullmatch(origin)
    if found is None:
        raise InvalidConfigError(
            f"allowed_origins={origin!r:.200} must be scheme://host or scheme://host:port, such as "
            "http://localhost:3000, without a path; '*' allows all"
        )
    scheme, host, port = found[1].lower(), found[2].lower(), found[3]
    return f"{scheme}://{host}" if port in (None, _USUAL_PORTS.get(scheme)) else f"{scheme}://{host}:{port}"
