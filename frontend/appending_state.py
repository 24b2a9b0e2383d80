"""AppendingState: what a plain program gets that an async one calls: it can add, but not wait for values."""

from __future__ import annotations

from typing import NoReturn

from .appendable import AppendableState
from .errors import InvalidProgramError


class AppendingState(AppendableState):
    """The state of an async program while a plain one adds to it. Every read raises InvalidProgramError."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise InvalidProgramError(
            "a plain program that an async one calls may add to the state but not read from it, for waiting would "
            "block the event loop: make it `async def` and await its reads, or run it by itself with "
            "`await program.arun(...)`"
        )

    __getitem__ = __iter__ = _refuse
    get = meta = metas = text = messages = token_ids = text_iter = sync = error = _refuse
    get_var = get_meta_info = text_async_iter = _refuse
