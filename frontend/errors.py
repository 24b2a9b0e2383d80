"""Errors of the language. They are raised where a value is read, with the cause chained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class ProgramError(RuntimeError):
    """A program, or a call in it, did not produce the value that was read. `__cause__` says why."""


class GenerationError(ProgramError):
    """A gen or select failed, or could not run because something before it failed."""


class UnparsedTextError(GenerationError):
    """A gen's text is there, but did not become the Python value that was asked for.

    Attributes:
        text: what was generated.
    """

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


class ProgramCancelledError(ProgramError):
    """The program was cancelled before the value was there."""


class ForkError(ProgramError):
    """Some branches of a joined variable failed.

    Attributes:
        results: one entry per branch that binds the variable, in branch order: its value, or the exception.
    """

    def __init__(self, message: str, results: Sequence[object]) -> None:
        super().__init__(message)
        self.results = list(results)


class ToolCallError(ProgramError):
    """A tool call of a conversation cannot be read or carried out."""


class ContextOverflowError(ValueError):
    """A conversation and room for a reply are more than the model's context. The message has the numbers."""


class InvalidProgramError(ValueError):
    """A program was written or called wrongly: a bad argument, role, name or expression."""


class UnknownVariableError(KeyError):
    """A state has no variable of that name. The message lists the names it has."""

    def __init__(self, name: object, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(known)
        listing = ", ".join(repr(item) for item in self.known) or "none"
        self.message = f"the program has no variable {name!r}; variables so far: {listing}"
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message


def raised_message(program_name: str, error: BaseException) -> str:
    """That a program's body raised `error`, in words."""
    return f"the program {program_name!r} raised {described(error)}"


def words_of(error: BaseException) -> str:
    """What an error says; which one it is if it cannot say it: an error of a program may be of any class."""
    try:
        return str(error)
    except Exception:
        return f"<a {type(error).__name__} whose message cannot be shown>"


def described(error: BaseException) -> str:
    """Which error it is and what it says: "Type: message"."""
    return f"{type(error).__name__}: {words_of(error)}"


def raise_interrupt(error: BaseException) -> None:
    """Raise what asks the process to stop, which is nobody's failure; anything else is dealt with already."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error


class ReadTimeoutError(TimeoutError):
    """A value was not there within the timeout the reader gave."""
