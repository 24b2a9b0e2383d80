"""Runs a ChatAsk: renders the prompt, enforces tool calls, and takes the text apart into content and calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from ...outputs import RequestOutput
from ..service import EngineService
from ..tenant import Tenant
from .ask import ChatAsk, ChatEvent, ChatMessage


class ChatRun:
    """A ChatAsk that was submitted. Use it as `async with`: leaving the block cancels what still runs."""

    async def events(self) -> AsyncIterator[ChatEvent]:
        """As they come, of an ask that is streamed; the last is ChatEnd.

        Raises:
            ApiError: the request failed.
        """
        raise NotImplementedError
        yield

    async def messages(self) -> tuple[list[ChatMessage], RequestOutput]:
        """All samples, whole, in order; and the output, which has the usage.

        Raises:
            ApiError: the request failed.
        """
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError


async def start_chat(service: EngineService, tenant: Tenant, ask: ChatAsk) -> ChatRun:
    """Submit it.

    Raises:
        ApiError: it is refused, with the field at fault; or the server is full.
    """
    raise NotImplementedError


async def count_prompt_tokens(service: EngineService, ask: ChatAsk) -> int:
    """How long the prompt is that `start_chat` would submit.

    Raises:
        ApiError: the messages do not fit the model's template.
    """
    raise NotImplementedError
