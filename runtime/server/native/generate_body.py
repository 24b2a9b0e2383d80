"""GenerateBody: the fields of `/generate`, as SGLang names them. What they may hold is checked by GenerateJob."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, WithJsonSchema, model_validator

from ....native_params import NATIVE_NAMES, RAMET_NAMES
from ..body import Body
from ..foreign_fields import refuse_misspelt

_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}
_ID_LISTS = {"anyOf": [_IDS, {"type": "array", "items": _IDS}]}


def _one_or_each(kind: str) -> dict[str, Any]:
    """A value for all prompts, or one for each."""
    return {"anyOf": [{"type": kind}, {"type": "array", "items": {"type": kind}}, {"type": "null"}]}


class GenerateBody(Body):
    """What is asked of `/generate`. Give `text` or `input_ids`: one, or a list of them.

    Fields that are not here are accepted and play no part, unless they ask for what cannot be done, belong into
    `sampling_params`, or are nearly called as one that is here.
    """

    CALLED_HERE: ClassVar[Mapping[str, str]] = {
        "structured_outputs": "sampling_params.json_schema, regex, ebnf or choices",
        **{field: f"sampling_params.{name}" for field, name in {**NATIVE_NAMES, **RAMET_NAMES}.items()},
    }
    model_config = ConfigDict(extra="allow")

    text: Annotated[Any, WithJsonSchema(_TEXTS)] = None
    input_ids: Annotated[Any, WithJsonSchema(_ID_LISTS)] = None
    sampling_params: Annotated[Any, WithJsonSchema(_one_or_each("object"))] = None
    return_logprob: Annotated[Any, WithJsonSchema(_one_or_each("boolean"))] = None
    logprob_start_len: Annotated[Any, WithJsonSchema(_one_or_each("integer"))] = None
    top_logprobs_num: Annotated[Any, WithJsonSchema(_one_or_each("integer"))] = None
    return_text_in_logprobs: Annotated[Any, WithJsonSchema({"type": "boolean"})] = None
    stream: Annotated[Any, WithJsonSchema({"type": "boolean"})] = None
    rid: Annotated[Any, WithJsonSchema(_one_or_each("string"))] = None
    priority: Annotated[Any, WithJsonSchema(_one_or_each("integer"))] = None
    cache_salt: Annotated[Any, WithJsonSchema(_one_or_each("string"))] = None
    extra_key: Annotated[Any, WithJsonSchema(_one_or_each("string"))] = None
    routing_key: Annotated[Any, WithJsonSchema(_one_or_each("string"))] = None
    num_healable_chars: Annotated[Any, WithJsonSchema(_one_or_each("integer"))] = None

    @model_validator(mode="before")
    @classmethod
    def _check_spelling(cls, given: Any) -> Any:
        """
        Raises:
            ApiError: a field is probably misspelt.
        """
        if isinstance(given, dict):
            refuse_misspelt(given, cls.model_fields)
        return given
