"""Body: what the bodies of all requests have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, model_validator

from ...json_depth import is_too_deep
from .errors import too_deep
from .foreign_fields import refuse_foreign


class Body(BaseModel):
    """JSON of a client's, nested no deeper than all can bear who walk through it, in fields that are not known too.

    Attributes:
        CALLED_HERE: of a body that asks for generated text, as for `refuse_foreign`; None for any other.
    """

    CALLED_HERE: ClassVar[Mapping[str, str] | None] = None

    @model_validator(mode="before")
    @classmethod
    def _check(cls, given: Any) -> Any:
        """
        Raises:
            ApiError: a field is nested too deeply, or would be dropped although it limits the answer.
        """
        if cls.CALLED_HERE is not None and isinstance(given, dict):
            refuse_foreign(given, cls.model_fields, cls.CALLED_HERE)
        for name, value in given.items() if isinstance(given, dict) else ():
            if is_too_deep(value):
                raise too_deep(f"{name:.80}", param=f"{name:.80}")
        return given
