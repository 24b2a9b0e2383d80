"""TemplateProgram: the source of a chat template, compiled when it is first used, and rendered within bounds."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jinja2

from ..chat_message import ChatTemplateError
from .template_budget import TemplateBudget, TemplateRefusedError
from .template_sandbox import BoundedEnvironment

OWN_VARIABLES = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "raise_exception"),
        *("self", "super", "loop", "caller", "varargs", "kwargs"),
    }
)
"""Set by ChatTemplate, or by Jinja."""


class TemplateProgram:
    """One template. Safe to use from several threads, of which one at a time renders it.

    Args:
        source: None for a model without a template; rendering then raises ChatTemplateError.
    """

    def __init__(self, source: str | None) -> None:
        self.source = source
        self._environment = BoundedEnvironment()
        self._lock = threading.RLock()
        self._budget: TemplateBudget | None = None
        self._template: jinja2.Template | None = None
        self._load_failure: ChatTemplateError | None = None

    @contextmanager
    def within_budget(self) -> Iterator[None]:
        """All renders of this thread inside share one budget. Blocks inside each other are one."""
        with self._lock:
            if self._budget is not None:
                yield
                return
            self._budget = TemplateBudget()
            try:
                yield
            finally:
                self._budget = None

    def render(self, variables: Mapping[str, Any]) -> str:
        """
        Raises:
            ChatTemplateError: there is no template; or it refuses the variables, exceeds a bound, or fails.
        """
        with self._lock:
            template = self._loaded()
            try:
                return self._environment.render(template, variables, self._budget)
            except Exception as error:  # a template can fail in every way a program can
                raise _failure(error) from error

    def _loaded(self) -> jinja2.Template:
        if self.source is None:
            raise ChatTemplateError(
                "this model has no chat template; give prompts as text, or load a model made for chat"
            )
        if self._template is None and self._load_failure is None:
            try:
                self._template = self._environment.load(self.source)
            except Exception as error:
                self._load_failure = _failure(error)  # kept: it may have taken its time, and would be the same again
                self._load_failure.__cause__ = error
        if self._load_failure is not None:
            raise ChatTemplateError(str(self._load_failure)) from self._load_failure.__cause__
        assert self._template is not None
        return self._template


def _failure(error: Exception) -> ChatTemplateError:
    if isinstance(error, TemplateRefusedError):
        return ChatTemplateError(f"the chat template refuses these messages: {error}")
    return ChatTemplateError(f"the chat template fails: {type(error).__name__}: {error!s:.1000}")
