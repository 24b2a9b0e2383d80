"""JsonRoute: reads a body before its handler sees it. Large ones are read by a worker, and every refusal says why."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from reprlib import Repr
from typing import Any

from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from .errors import ApiError, too_deep
from .foreign_fields import missing
from .service import EngineService
from .unsayable import NumberReader, may_have_half_pairs, refuse_unsayable

SMALL_BODY_BYTES = 64 << 10
"""A body of this size is read sooner than a worker would have been woken."""
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100


class JsonRoute(APIRoute):
    """A route whose body is a JSON object. To be the `route_class` of its router."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        model = self.body_field.field_info.annotation
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)

        async def read_and_handle(http: Request) -> Response:
            content = await http.body()
            if content:
                check_headers(http.headers)
            if len(content) <= SMALL_BODY_BYTES:
                body = read_body(content, model)
            else:
                service = http.app.state.service
                assert isinstance(service, EngineService)
                body = await service.workers.read(http.state.tenant.name, lambda: read_body(content, model))
            return await handle(_ReadRequest(http.scope, http.receive, body))

        return read_and_handle


class _ReadRequest(Request):
    """A request whose body is no longer bytes. FastAPI takes an instance of the type it looks for as it is."""

    def __init__(self, scope: Scope, receive: Receive, body: BaseModel) -> None:
        super().__init__(scope, receive)
        self._read = body

    async def body(self) -> bytes:
        return b"{}"

    async def json(self) -> BaseModel:
        return self._read


def check_headers(headers: Headers) -> None:
    """
    Raises:
        ApiError: 415, they announce something else than plain JSON.
    """
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", ""):
        message = f"Content-Encoding: {coding:.80} is not taken here: send the body as it is, not compressed"
        raise ApiError(415, message)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        given = f", not {kind!r:.80}" if kind else "; the request has no Content-Type"
        raise ApiError(415, f"the body must be JSON, and be called so by Content-Type: application/json{given}")


def read_body(content: bytes, model: type[BaseModel]) -> BaseModel:
    """Cost: nothing else runs in the process while the text becomes objects: a quarter of a second for 8 MiB of
    numbers, twice that for 8 MiB of empty objects.

    Raises:
        ApiError: 400, it is no JSON, or a field has a value that it may not have.
    """
    numbers = NumberReader()
    value = _parsed(content, numbers)
    try:
        body = model.model_validate(value)
    except ValidationError as error:
        raise invalid_value(error.errors(include_url=False)[0], value) from None
    if not numbers.are_finite or may_have_half_pairs(content):
        refuse_unsayable(value, (field.alias or name for name, field in model.model_fields.items()))
    return body


def _parsed(content: bytes, numbers: NumberReader) -> object:
    if not content:
        raise ApiError(400, "the body is empty: send a JSON object")
    try:
        return json.loads(content, parse_float=numbers, parse_constant=numbers)
    except json.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error.msg} at character {error.pos}") from None
    except UnicodeDecodeError as error:
        message = f"the body is not {error.encoding.upper()}: {error.reason} at byte {error.start}"
        raise ApiError(400, message) from None
    except RecursionError:
        raise too_deep("the body") from None
    except ValueError:  # Python reads no longer ones
        most = sys.get_int_max_str_digits()
        raise ApiError(400, f"the body has an integer of more than {most} digits, the limit of this server") from None


def invalid_value(error: Mapping[str, Any], body: object) -> ApiError:
    """What a client is told of the first of pydantic's errors."""
    path = list(_path(error["loc"], error["type"], body))
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    given = f"{_SHORT.repr(error['input']):.100}"
    match error["type"]:
        case "missing":
            message = missing(field, body if len(path) == 1 else None)
        case "too_short":
            message = f"{field}={given} is too short: it must have at least {error['ctx']['min_length']} item"
        case _:
            message = f"{field or 'the body'}: {error['msg']}, not {given}"
    return ApiError(400, message, param=field or None)


def _path(loc: Sequence[int | str], kind: str, body: object) -> Iterator[int | str]:
    """A pydantic location without what is no part of the body, such as the alternative of a union that was tried."""
    for idx, part in enumerate(loc, start=1):
        is_there = isinstance(body, dict) and part in body
        is_item = isinstance(body, list) and isinstance(part, int) and part < len(body)
        if is_there or is_item:
            body = body[part]  # type: ignore[index]
            yield part
        elif kind == "missing" and idx == len(loc):
            yield part
