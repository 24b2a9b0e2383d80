"""Body: what the bodies of all requests have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, model_validator

from ...json_depth import MAX_JSON_DEPTH, is_too_deep
from .errors import ApiError


class Body(BaseModel):
    """JSON of a client's, nested no deeper than all can bear who walk through it, in fields that are not known too."""

    @model_validator(mode="before")
    @classmethod
    def _check_depth(cls, given: Any) -> Any:
        """
        Raises:
            ApiError: a field is nested too deeply.
        """
        for name, value in given.items() if isinstance(given, dict) else ():
            if is_too_deep(value):
                raise ApiError(
                    400,
                    f"{name:.80} is nested too deeply: lists and objects may be in each other {MAX_JSON_DEPTH} times",
                    param=f"{name:.80}",
                )
        return given
