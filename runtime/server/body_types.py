"""Types of fields in bodies whose checks end at the first item that is wrong: a million wrong items are one error."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, cast

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema

T = TypeVar("T")


class _FailFast:
    """As pydantic's own, which fits no dict and no union."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema: dict[str, Any] = {**handler(source), "fail_fast": True}
        assert schema["type"] in ("list", "dict")
        return cast(CoreSchema, schema)


_FAIL_FAST = _FailFast()

ListOf = Annotated[list[T], _FAIL_FAST]
DictOf = Annotated[dict[str, T], _FAIL_FAST]
