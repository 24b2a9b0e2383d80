"""The bodies of `/v1/messages` and `/v1/messages/count_tokens`. Fields that are not named here are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from ..body_types import ListOf
from ..chat.engine_fields import EngineFields


def _text_or_blocks(value: object) -> object:
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(block, dict) for block in value)):
        return value
    raise PydanticCustomError("text_or_blocks", "Input should be a text or a list of content blocks")


Blocks = Annotated[
    str | list[dict[str, Any]],
    PlainValidator(_text_or_blocks, json_schema_input_type=str | list[dict[str, Any]]),
]
"""Blocks are looked into by `conversation.py`, which names the types that it does not know."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class Message(_Model):
    role: Literal["user", "assistant", "system"]
    content: Blocks


class Tool(_Model):
    """Tools that Anthropic runs have other types; all fields are optional so that those are refused by their type."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class GivenChoice(_Model):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class JsonFormat(_Model):
    model_config = ConfigDict(extra="ignore", strict=True, protected_namespaces=())

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(_Model):
    format: JsonFormat | None = None


class Thinking(_Model):
    type: str


class CountTokensBody(EngineFields):
    """What the length of a prompt depends on."""

    model: str
    messages: Annotated[ListOf[Message], Field(min_length=1)]
    system: Blocks | None = None
    tools: ListOf[Tool] | None = None
    tool_choice: GivenChoice | None = None
    thinking: Thinking | None = None
    mcp_servers: ListOf[dict[str, Any]] | None = None
    output_config: OutputConfig | None = None


class MessagesBody(CountTokensBody):
    """One request for a message.

    Attributes:
        max_tokens: 0 computes the prompt and keeps it in the cache, and generates nothing.
    """

    CALLED_HERE: ClassVar[Mapping[str, str]] = {"structured_outputs": "output_config.format, regex, ebnf or choices"}

    max_tokens: Annotated[int, Field(ge=0)]
    stop_sequences: ListOf[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
