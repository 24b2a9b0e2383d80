"""Body: what the bodies of all requests have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, model_validator

from ...json_depth import is_too_deep
from .errors import too_deep


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
                raise too_deep(f"{name:.80}", param=f"{name:.80}")
        return given
