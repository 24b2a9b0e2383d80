"""What an interpreter runs: text, roles and calls, forks, spans of text, and branches that are written on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .backend import Backend, Message, ProgramHint
from .bound_values import TextSpan
from .calls import Call, Failure
from .continuation import History
from .errors import GenerationError, ProgramCancelledError, words_of
from .handle import Handle
from .primitives import RoleBegin, RoleEnd, Text
from .token_log import Addition, TokenLog

if TYPE_CHECKING:
    from .interpreter import Interpreter


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a branch starts from. `text` is all text so far, `role_text` that of the open message."""

    tokens: TokenLog
    text: str
    messages: tuple[Message, ...]
    role: str | None
    role_text: str
    failure: Failure | None
    backend: Backend


@dataclass(frozen=True, slots=True)
class ForkOp:
    """Hand this state to branches, which wait for it."""

    branches: tuple[Interpreter, ...]


@dataclass(frozen=True, slots=True)
class HintOp:
    """Tell the backend something, once all that was added before has run."""

    hint: ProgramHint


@dataclass(frozen=True, slots=True)
class SpanBegin:
    """The text of a span begins here."""

    span: TextSpan


@dataclass(frozen=True, slots=True)
class SpanEnd:
    """The text of a span, which has begun in this state, ends here."""

    span: TextSpan


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a branch has added since it was forked, for the state that it was forked from."""

    text: str
    tokens: Addition


@dataclass(frozen=True, slots=True)
class Contribute:
    """In a branch: settle the handle with what was added up to here, or with why it is incomplete."""

    handle: Handle[Contribution]

    def settle(self, text: str, tokens: TokenLog) -> None:
        self.handle.settle_with(lambda: Contribution(text, tokens.addition()))


@dataclass(frozen=True, slots=True)
class AppendBranches:
    """Wait for what branches contribute and append it, in their order.

    Attributes:
        source: file and line of the program that asked.
    """

    handles: tuple[Handle[Contribution], ...]
    source: str

    def failure(self, idx: int, error: BaseException) -> Failure:
        """That the branch of this index has no whole text."""
        error_type = ProgramCancelledError if isinstance(error, ProgramCancelledError) else GenerationError
        return Failure(
            f"join at {self.source}: the text of branch {idx} is incomplete: {words_of(error)}", error, error_type
        )


Mark = SpanBegin | SpanEnd | Contribute
"""What changes nothing of the text."""


Operation = Text | RoleBegin | RoleEnd | History | Call | ForkOp | HintOp | Mark | AppendBranches


def fail_operation(operation: Operation, failure: Failure) -> None:
    """An operation that cannot run: who waits for its outcome gets the failure, unless there is one already."""
    if isinstance(operation, Call):
        operation.fail(failure.of_dependent(operation.record))
    elif isinstance(operation, SpanEnd):
        operation.span.settle(failure.of_what_depends(operation.span.description))
    elif isinstance(operation, Contribute) and not operation.handle.is_done:
        operation.handle.fail(failure.to_error())
