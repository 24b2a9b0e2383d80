"""The body of `/v1/responses`. Fields that are not named here are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from ..body_types import DictOf, ListOf
from ..chat.engine_fields import EngineFields


def _text_or_items(value: object) -> object:
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, dict) for item in value)):
        return value
    raise PydanticCustomError("text_or_items", "Input should be a text or a list of items")


def _name_or_object(value: object) -> object:
    if isinstance(value, str | dict):
        return value
    raise PydanticCustomError("name_or_object", "Input should be 'auto', 'none', 'required' or an object with a type")


Items = Annotated[
    str | list[dict[str, Any]], PlainValidator(_text_or_items, json_schema_input_type=str | list[dict[str, Any]])
]
"""Items are looked into by `responses_input.py`, which names the types that it does not know."""

Choice = Annotated[str | dict[str, Any], PlainValidator(_name_or_object, json_schema_input_type=str | dict[str, Any])]


LOGPROBS = "message.output_text.logprobs"
"""What `include` has to have for them."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, protected_namespaces=())


class TextFormat(_Model):
    """A schema is enforced whether it is called strict or not."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextConfig(_Model):
    format: TextFormat | None = None


class FunctionTool(_Model):
    """Tools that OpenAI runs have other types; the name is optional so that those are refused by their type."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponsesBody(EngineFields):
    """One request for a response."""

    CALLED_HERE: ClassVar[Mapping[str, str]] = {
        "structured_outputs": "text.format, regex, ebnf or choices",
        "logprobs": "top_logprobs, and include=['message.output_text.logprobs']",
    }

    model: str | None = None
    input: Items | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: ListOf[FunctionTool] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    stream: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: DictOf[str] | None = None
    user: str | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: ListOf[str] | None = None
    background: bool | None = None
    conversation: Choice | None = None
    prompt: dict[str, Any] | None = None

    @property
    def num_logprobs(self) -> int | None:
        """How many of the most likely tokens are listed beside each; None if no logprobs are asked for."""
        is_asked_for = bool(self.top_logprobs) or LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if is_asked_for else None
