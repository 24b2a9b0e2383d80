"""`ramet run FILE`: runs a program file with a model as its default backend, and says what the cache saved."""

from __future__ import annotations

import argparse
import builtins
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from .engine_options import add_engine_arguments, open_backend
from .errors import CommandError, user_traceback
from .interrupts import exit_on_interrupt
from .report import format_failures, format_summary, format_table
from .terminal import Terminal
from .trace_file import TraceFile

if TYPE_CHECKING:
    from ..frontend.backends.local import LocalBackend
    from .recording_backend import RecordingBackend

EXIT_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the program; options of ramet go before it")
    rest = parser.add_argument(
        "args", nargs=argparse.REMAINDER, metavar="ARGS", help="passed on to the program in sys.argv"
    )
    rest.required = False  # argparse would name it along with a FILE that is missing
    report = parser.add_mutually_exclusive_group()
    report.add_argument("--report", action="store_true", help="list every call on stderr at the end")
    report.add_argument("--no-report", action="store_true", help="say nothing at the end")
    parser.add_argument(
        "--trace",
        metavar="PATH",
        help="write what the programs did: a page (.html), text (.txt), records (.jsonl); or draw the steps (.svg)",
    )
    add_engine_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    from .recording_backend import RecordingBackend

    path = checked_path(args.file)
    trace = None if args.trace is None else TraceFile(args.trace)
    with ExitStack() as stack:
        backend = RecordingBackend(lambda: open_traced(args, trace, stack), keeps_runs=trace is not None)
        try:
            with exit_on_interrupt(lambda: backend.is_opening):
                status = run_program(path, args.args, backend)
        except KeyboardInterrupt:
            save_trace(trace, backend)
            raise
        save_trace(trace, backend)
        if not args.no_report:
            print_report(backend, Terminal(sys.stderr), is_long=args.report)
    return status


def open_traced(args: argparse.Namespace, trace: TraceFile | None, stack: ExitStack) -> LocalBackend:
    """The backend, closed with `stack`; the trace begins with it."""
    backend = stack.enter_context(open_backend(args))
    if trace is not None:
        trace.start(backend.llm, stack)
    return backend


def save_trace(trace: TraceFile | None, backend: RecordingBackend) -> None:
    """Before the backend is closed: that ends what the program did not wait for."""
    if trace is not None:
        print(f"ramet: {trace.save(backend)}", file=sys.stderr)


def checked_path(name: str) -> Path:
    """
    Raises:
        CommandError: there is no file of that name.
    """
    path = Path(name)
    if path.is_dir():
        raise CommandError(f"{name!r} is a directory: give the Python file to run")
    if not path.is_file():
        raise CommandError(f"{name!r} does not exist: give the Python file to run")
    return path


def run_program(path: Path, arguments: Sequence[str], backend: RecordingBackend) -> int:
    """Run a file as `python FILE ARGS` would, with `backend` as the default one. Returns the exit status.

    What the program raises is printed as its own traceback, unless it only says that there is no backend.

    Raises:
        KeyboardInterrupt: Ctrl-C.
        Exception: why the backend could not be opened, if the program failed after that.
    """
    from ..frontend.default_backend import set_default_backend

    known_threads = set(threading.enumerate())
    set_default_backend(backend)
    try:
        with _as_main(path, arguments) as module:
            status = _status_of(path, module, backend)
            _join_threads(known_threads)
    finally:
        set_default_backend(None)
    if status is None and backend.open_error is not None:
        raise backend.open_error from None
    return EXIT_FAILED if status is None else status


def _status_of(path: Path, module: ModuleType, backend: RecordingBackend) -> int | None:
    """Run the module to its end. What it raises is printed, and there is no status then."""
    try:
        _execute(path, module)
    except SystemExit as exit_request:
        return _exit_status(exit_request)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # Python ends a program on a GeneratorExit or the like as on any other
        if backend.open_error is None or not _is_caused_by(error, backend.open_error):
            sys.stderr.write(user_traceback(error, num_own_frames=2))
        return None
    return 0


def _join_threads(known: set[threading.Thread]) -> None:
    """Wait for the threads that the program has started, and those that they start, as Python does at its end."""
    while True:
        others = [each for each in threading.enumerate() if not each.daemon and each not in known]
        if not others:
            return
        for thread in others:
            thread.join()


def print_report(backend: RecordingBackend, terminal: Terminal, *, is_long: bool) -> None:
    calls, totals, failures = backend.calls(), backend.totals(), backend.failures()
    if is_long:
        terminal.line(format_table(calls, totals, terminal))
    if totals.num_calls or is_long:
        terminal.line(terminal.dim(terminal.wrapped(f"ramet: {format_summary(totals)}")))
    for report in backend.reports():
        if report.num_runs > 1 and report.shared_prefix_len:
            terminal.line(terminal.dim(terminal.wrapped(f"ramet: {report}")))
    if failures:
        terminal.line(terminal.bad(terminal.wrapped(f"ramet: {format_failures(failures, len(calls))}")))


def _execute(path: Path, module: ModuleType) -> None:
    code: CodeType = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    exec(code, module.__dict__)


@contextmanager
def _as_main(path: Path, arguments: Sequence[str]) -> Iterator[ModuleType]:
    """A fresh `__main__` for the file; the interpreter is as it was afterwards."""
    module = ModuleType("__main__")
    module.__file__ = str(path)
    module.__dict__["__builtins__"] = builtins
    saved_main, saved_argv, saved_path = sys.modules["__main__"], sys.argv, sys.path[:]
    sys.modules["__main__"] = module
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.absolute().parent))
    try:
        yield module
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = saved_main, saved_argv, saved_path


def _exit_status(exit_request: SystemExit) -> int:
    """The status that Python itself would end with."""
    if exit_request.code is None:
        return 0
    if isinstance(exit_request.code, int):
        return exit_request.code
    print(exit_request.code, file=sys.stderr)
    return EXIT_FAILED


def _is_caused_by(error: BaseException, cause: BaseException) -> bool:
    current: BaseException | None = error
    while current is not None:
        if current is cause:
            return True
        current = current.__cause__
    return False
