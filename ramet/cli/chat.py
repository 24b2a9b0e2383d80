"""`ramet chat`: a conversation in the terminal that computes only the new tokens of every turn."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .engine_options import add_engine_arguments, open_backend, positive_int
from .errors import is_deliberate, one_line
from .soft_wrap import SoftWrapWriter
from .terminal import Terminal

if TYPE_CHECKING:
    from ..frontend.calls import CallMeta
    from ..frontend.chat.reply import PendingReply
    from ..frontend.conversation import Conversation

HELP = """\
/help          this list
/reset         forget the conversation, keep the system message
/system TEXT   start over with another system message; without TEXT, show it
/quit          leave (or Ctrl-D)
Ctrl-C while the model writes stops that reply only. A message that begins with / needs a space before it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", metavar="TEXT", help="system message (default: what the model's template brings)")
    group = parser.add_argument_group("sampling")
    group.add_argument("--temperature", type=float, default=0.7, help="0 is greedy (default: 0.7)")
    group.add_argument("--top-p", type=float, default=0.95, help="default: 0.95")
    group.add_argument("--top-k", type=int, default=0, help="0 keeps all tokens (default)")
    group.add_argument("--min-p", type=float, default=0.0)
    group.add_argument("--repetition-penalty", type=float, default=1.0)
    group.add_argument("--max-tokens", type=positive_int, default=512, help="longest reply (default: 512)")
    group.add_argument("--seed", type=int, help="makes the replies repeatable")
    add_engine_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    terminal = Terminal()
    with open_backend(args) as backend:
        from ..frontend.conversation import Conversation

        llm = backend.llm
        conversation = Conversation(
            args.system,
            backend=backend,
            on_overflow="drop_oldest",
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k,
            min_p=args.min_p,
            repetition_penalty=args.repetition_penalty,
            max_tokens=args.max_tokens,
            seed=args.seed,
        )
        greeting = f"{llm.model_name}, context {llm.max_context_len:,} tokens. /help lists the commands."
        terminal.line(terminal.dim(terminal.wrapped(greeting)))
        ChatSession(conversation, terminal, line_reader(terminal)).run()
    return 0


def line_reader(terminal: Terminal) -> Callable[[], str]:
    """Reads one line of input; with a prompt and line editing where a person types. Raises EOFError at the end."""
    if not (sys.stdin.isatty() and terminal.is_interactive):
        return input
    with contextlib.suppress(ImportError):  # not on every platform
        import readline  # noqa: F401  (importing it gives input() line editing)
    return lambda: input("> ")


@dataclass(slots=True)
class ChatSession:
    """The loop of a chat: read a line, obey it or answer it."""

    conversation: Conversation
    terminal: Terminal
    read_line: Callable[[], str]

    def run(self) -> None:
        """Until the input ends or /quit."""
        while True:
            try:
                line = self.read_line()
            except EOFError:
                return
            except KeyboardInterrupt:
                self._note("\n/quit or Ctrl-D leaves")
                continue
            if line.startswith("/"):
                if not self._obey(line):
                    return
            elif line.strip():
                self._answer(line.strip())

    def _obey(self, line: str) -> bool:
        """Carry out a command; False if it is the last."""
        name, _, rest = line.partition(" ")
        if name == "/quit":
            return False
        if name == "/reset":
            self.conversation.clear()
            self._note("forgotten")
        elif name == "/system" and rest.strip():
            self.conversation.clear()
            self.conversation.system = rest.strip()
            self._note("a new conversation with this system message")
        elif name == "/system":
            self._note(self.conversation.system or "none given; the model's template may bring its own")
        elif name == "/help":
            self._note(HELP)
        else:
            self._note(f"unknown command {name}; /help lists the commands")
        return True

    def _answer(self, text: str) -> None:
        num_dropped_before = self.conversation.num_dropped
        start = time.monotonic()
        try:
            pending = self.conversation.send(text)
        except Exception as error:
            if not is_deliberate(error):
                raise
            self._note(one_line(error))
            return
        num_dropped = self.conversation.num_dropped - num_dropped_before
        if num_dropped:
            self._note(f"context full: the {num_dropped} oldest messages were dropped")
        try:
            first_text_at = self._follow(pending)
            meta = pending.result().meta
        except KeyboardInterrupt:
            pending.stop()
            self._note("\nstopped")
        except Exception as error:
            fault = error.__cause__ or error
            if not is_deliberate(fault):
                raise fault from None
            self._note(f"\n{one_line(error)}; the message is forgotten")
        else:
            assert meta is not None
            self._note("\n" + format_turn(meta, first_text_at - start, time.monotonic() - first_text_at))

    def _follow(self, pending: PendingReply) -> float:
        """Write the reply as it comes. Returns when its first text came, on the monotonic clock."""
        first_text_at: float | None = None
        writer = SoftWrapWriter(self.terminal)
        try:
            for piece in pending.chunks():
                if first_text_at is None:
                    first_text_at = time.monotonic()
                writer.write(piece)
        finally:
            writer.close()
        return time.monotonic() if first_text_at is None else first_text_at

    def _note(self, text: str) -> None:
        for line in text.split("\n"):
            self.terminal.line(self.terminal.dim(self.terminal.wrapped(line)))


def format_turn(meta: CallMeta, first_text_s: float, later_text_s: float) -> str:
    """What a turn cost, as one line.

    Args:
        first_text_s: seconds from the question to the first text of the reply.
        later_text_s: seconds from there to the end.
    """
    parts = [f"{meta.num_generated_tokens:,} generated"]
    if meta.num_generated_tokens > 1 and later_text_s > 0:
        parts.append(f"{(meta.num_generated_tokens - 1) / later_text_s:.1f} tok/s")
    parts.append(f"first text after {first_text_s:.2f} s")
    if meta.finish_reason == "length":
        parts.append("cut off at the length limit")
    return (
        f"[{meta.num_prompt_tokens:,} prompt tokens: {meta.num_cached_tokens:,} cached, "
        f"{meta.num_computed_tokens:,} computed; {', '.join(parts)}]"
    )
