"""Refusals of a chat turn in the words of the API that asked for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ..errors import ApiError, foreseen


@contextmanager
def in_words_of(names: Mapping[str, str], messages_field: str | None) -> Iterator[None]:
    """Inside the block refusals speak of a ChatAsk; outside they name what the client has sent.

    Args:
        names: regular expressions for fields of a ChatAsk, and what to put there instead.
        messages_field: where the messages came from. They were put together anew, so their numbers say nothing there.
            None: they are as the client has sent them.

    Raises:
        ApiError: with the field of the client's.
    """
    try:
        yield
    except Exception as error:
        refused = foreseen(error)
        if refused is None:
            raise
        message, param = refused.message, refused.param
        for pattern, name in names.items():
            message = re.sub(pattern, name, message)
            param = param and re.sub(pattern, name, param)
        if messages_field is not None:
            message = re.sub(r"messages\[(\d+)\]", r"message \1 of the conversation", message)
            message = re.sub(r"^messages\b", messages_field, message)
        if messages_field is not None and param is not None and param.startswith("messages"):
            param = messages_field
        raise ApiError(
            refused.status, message, param=param, code=refused.code, retry_after_s=refused.retry_after_s
        ) from error
