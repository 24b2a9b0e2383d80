"""Libraries that turn answers into objects: whatever the model is, they get an object of the type they asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from ramet.runtime.server.listener import BackgroundServer

from .conftest import Client


class Person(BaseModel):
    """A person in a story."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)
    mood: Literal["happy", "sad"]


PROMPT = "Mary Brown is nine years old, and she laughs a lot."


@pytest.fixture
def agent_model(client: Client, server: BackgroundServer) -> Any:
    models, providers = client("pydantic_ai.models.openai"), client("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=f"{server.url}/v1", api_key="none")
    return models.OpenAIChatModel("smollm2", provider=provider)


def test_pydantic_ai_gets_an_object_through_a_required_tool(client: Client, agent_model: Any) -> None:
    agent = client("pydantic_ai").Agent(agent_model, output_type=Person, retries=0)
    result = agent.run_sync(PROMPT, model_settings={"temperature": 0.0, "max_tokens": 80})
    assert isinstance(result.output, Person)
    assert result.usage.output_tokens > 0


def test_pydantic_ai_counts_what_the_cache_has_saved(client: Client, agent_model: Any) -> None:
    agent = client("pydantic_ai").Agent(agent_model)
    settings = {"temperature": 0.0, "max_tokens": 4}
    first = agent.run_sync("Name a colour, please, whichever you like best of all.", model_settings=settings)
    again = agent.run_sync("Name a colour, please, whichever you like best of all.", model_settings=settings)
    assert again.output == first.output
    assert again.usage.cache_read_tokens >= again.usage.input_tokens - 1


def test_pydantic_ai_streams_text(client: Client, agent_model: Any) -> None:
    agent = client("pydantic_ai").Agent(agent_model)
    settings = {"temperature": 0.0, "max_tokens": 16}

    async def stream() -> list[str]:
        async with agent.run_stream("Tell a story.", model_settings=settings) as result:
            return [piece async for piece in result.stream_text(delta=True, debounce_by=None)]

    pieces = asyncio.run(stream())
    assert len(pieces) > 1
    assert "".join(pieces) == agent.run_sync("Tell a story.", model_settings=settings).output


def test_pydantic_ai_lets_the_model_call_tools(client: Client, agent_model: Any) -> None:
    pydantic_ai = client("pydantic_ai")
    called: list[str] = []
    agent = pydantic_ai.Agent(agent_model, output_type=Person, retries=0)

    @agent.tool_plain  # type: ignore[untyped-decorator]
    def look_up(name: str) -> str:
        """Tells about a person."""
        called.append(name)
        return "She is nine years old."

    limits = pydantic_ai.UsageLimits(request_limit=3)
    settings = {"temperature": 0.0, "max_tokens": 80}
    try:
        assert isinstance(agent.run_sync(PROMPT, model_settings=settings, usage_limits=limits).output, Person)
    except pydantic_ai.UsageLimitExceeded:  # so small a model may well look up names for ever
        assert called


@pytest.fixture
def instructor_of(client: Client, server: BackgroundServer) -> Callable[[str], Any]:
    """A client of instructor for one of its modes."""
    instructor, openai = client("instructor"), client("openai")
    plain = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    return lambda mode: instructor.from_openai(plain, mode=getattr(instructor.Mode, mode))


ASK: dict[str, Any] = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": PROMPT}],
    "response_model": Person,
    "max_retries": 0,
    "temperature": 0.0,
    "max_tokens": 120,
}


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_instructor_gets_an_object(instructor_of: Callable[[str], Any], mode: str) -> None:
    assert isinstance(instructor_of(mode).chat.completions.create(**ASK), Person)


def test_instructor_in_json_mode_gets_json(client: Client, instructor_of: Callable[[str], Any]) -> None:
    """All that this mode asks of a server is JSON; whether it fits the type is the model's good will."""
    responses: list[Any] = []
    wrapped = instructor_of("JSON")
    wrapped.on("completion:response", responses.append)
    with suppress(client("instructor.core.exceptions").InstructorError):
        wrapped.chat.completions.create(**ASK)
    (response,) = responses
    assert response.choices[0].finish_reason == "stop"
    assert isinstance(json.loads(response.choices[0].message.content), dict)
