"""How errors reach a person at the command line."""

from __future__ import annotations

from pathlib import Path
from traceback import TracebackException

_PACKAGE = __name__.partition(".")[0]
_PACKAGE_DIR = str(Path(__file__).parent.parent)


class CommandError(Exception):
    """The command was asked for something it cannot do; the message says what to do instead."""


def is_deliberate(error: BaseException) -> bool:
    """Whether the product raised it on purpose: only then is its class one of ours."""
    return type(error).__module__.partition(".")[0] == _PACKAGE


def one_line(error: BaseException) -> str:
    """The error as one line, followed by the causes that its message does not already name."""
    texts = [_text(error) or type(error).__name__]
    cause = error.__cause__
    while cause is not None:
        text = _text(cause)
        begin = " ".join(str(cause).strip().partition("\n")[0].split())
        if text and not any(begin in seen or text in seen for seen in texts):
            texts.append(text)
        cause = cause.__cause__
    return ": ".join(texts)


def _text(error: BaseException) -> str:
    """Without the number of an error of the system, which says what its words say."""
    text = " ".join(str(error).split())
    return text.removeprefix(f"[Errno {error.errno}] ") if isinstance(error, OSError) else text


def cause_and_remedy(error: BaseException) -> tuple[str, str]:
    """A deliberate error in two parts, what is wrong and what to do: its messages put a semicolon between them. The
    second part is empty where there is none."""
    cause, _, remedy = one_line(error).partition("; ")
    return cause, remedy


def user_traceback(error: BaseException, num_own_frames: int) -> str:
    """The traceback as the author of a program wants it.

    Args:
        num_own_frames: outermost frames to drop: those of the command that ran the program.

    Where the product raised the error on purpose, the frames inside the product go too: the reader's own line is the
    one that asked.
    """
    traceback = error.__traceback__
    for _ in range(num_own_frames):
        traceback = traceback.tb_next if traceback is not None else None
    report = TracebackException.from_exception(error.with_traceback(traceback))
    if is_deliberate(error):
        _drop_package_frames(report)
    return "".join(report.format() if report.stack else report.format_exception_only())


def _drop_package_frames(report: TracebackException | None) -> None:
    while report is not None:
        report.stack[:] = [frame for frame in report.stack if not frame.filename.startswith(_PACKAGE_DIR)]
        report = report.__cause__ or report.__context__
