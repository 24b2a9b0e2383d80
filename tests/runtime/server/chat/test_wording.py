"""Refusals name what the client has sent."""

from __future__ import annotations

import pytest

from ramet.chat_message import ChatTemplateError
from ramet.runtime.errors import InvalidRequestError
from ramet.runtime.server.chat.wording import in_words_of
from ramet.runtime.server.errors import ApiError

NAMES = {r"tools\[(\d+)\]\.function\.": r"tools[\1]."}


@pytest.mark.parametrize(
    ("error", "message", "param"),
    [
        (
            ApiError(400, "tools[2].function.name: no", param="tools[2].function.name"),
            "tools[2].name: no",
            "tools[2].name",
        ),
        (ApiError(400, "no", param="messages"), "no", "input"),
        (ChatTemplateError("messages[3] has no content"), "message 3 of the conversation has no content", "input"),
        (InvalidRequestError("max_tokens=9 is too many"), "max_tokens=9 is too many", "max_tokens"),
    ],
)
def test_fields_are_renamed(error: Exception, message: str, param: str) -> None:
    with pytest.raises(ApiError) as caught, in_words_of(NAMES, "input"):
        raise error
    assert (caught.value.status, caught.value.message, caught.value.param) == (400, message, param)


def test_what_a_client_should_do_stays() -> None:
    with pytest.raises(ApiError) as caught, in_words_of(NAMES, "input"):
        raise ApiError(429, "full", code="server_full", retry_after_s=3.0)
    assert (caught.value.status, caught.value.code, caught.value.retry_after_s) == (429, "server_full", 3.0)


@pytest.mark.parametrize("kind", [KeyError, ValueError])
def test_bugs_stay_bugs(kind: type[Exception]) -> None:
    with pytest.raises(kind), in_words_of(NAMES, "input"):
        raise kind("x")
