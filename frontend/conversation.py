"""Conversation: a chat of several turns whose token ids only grow, so that every turn finds those before in the cache.

chat = Conversation(system="Answer in one sentence.", temperature=0)
print(chat.ask("What is the capital of France?"))
for piece in chat.stream("Which river runs through it?"):
    print(piece, end="")
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from ..prompt_explanation import PromptExplanation
from .backend import Backend, Message
from .calls import CallRecord
from .chat.bridge import as_history, entry_of_state
from .chat.history import Entry, Prompt, Renderer, waits_for_reply
from .chat.message_log import Content, MessageLog, Moment
from .chat.messages import checked_message, checked_messages
from .chat.overflow import ContextLimit, OverflowPolicy, turn_starts
from .chat.reply import PendingReply, Reply, Settlement, checked_no_open_reply
from .chat.request import ReplyRequest, StartedReply, checked_sampling, reply_request
from .chat.stream import AsyncReplyStream, ReplyStream
from .chat.tool_schema import as_tools
from .chat.tool_use import NO_TOOLS, OnToolError, ToolUse, check_tool_loop, tool_use
from .continuation import History
from .default_backend import as_backend, get_default_backend
from .errors import InvalidProgramError, ToolCallError
from .execution import Outcome
from .run_context import RunContext
from .timeouts import checked_timeout

if TYPE_CHECKING:
    from .default_backend import BackendLike
    from .state import ProgramState


class Conversation(MessageLog):
    """Messages, and the exact tokens that the model was sent and wrote for them.

    A turn is a question with all that follows it up to the next one. What a model wrote keeps its tokens through
    `edit`, `rewind` and `branch`: whatever part of a conversation is sent again is found in the cache. For one thread
    at a time; branches are independent.

    Args:
        system: the system message; None for none, or the one that the template brings.
        tools: functions with type hints (`function_schema` says which), or JSON schemas of functions.
        backend: a backend, an LLM or a model name; None for the default one.
        messages: how it begins, beside `system`.
        tool_format: how the model writes tool calls, a key of TOOL_FORMATS; None for what the template does.
        max_context_len: in tokens; None for the backend's limit, if it says one.
        on_overflow: what to do where the messages and room for a reply are more than that. "error" raises,
            "drop_oldest" drops the oldest turns whole (system messages stay), and a function gets an Overflow and
            returns the messages to go on with. `dropped` and `Reply.dropped` have what was lost.
        reply_reserve: tokens that must be left for a reply. None: its max_tokens, but no more than a quarter of the
            context. A reply that has less room than its max_tokens gets what there is (`Reply.max_tokens`).
        sampling: defaults for every reply: fields of SamplingParams that constrain nothing. max_tokens is 128.

    Raises:
        InvalidProgramError: an argument that cannot work.
        InvalidSamplingParamsError: a sampling default is out of range.

    Attributes:
        backend: what it runs on.
        last_reply: the last one that was made here.
    """

    def __init__(
        self,
        system: str | None = None,
        tools: Sequence[Callable[..., Any] | Mapping[str, Any]] | None = None,
        *,
        backend: BackendLike | None = None,
        messages: Sequence[Message] | None = None,
        tool_format: str | None = None,
        max_context_len: int | None = None,
        on_overflow: OverflowPolicy = "error",
        reply_reserve: int | None = None,
        **sampling: Any,
    ) -> None:
        super().__init__()
        self._sampling = checked_sampling(sampling)
        self.backend: Backend = get_default_backend() if backend is None else as_backend(backend)
        self._limit = ContextLimit.of(self.backend, max_context_len, on_overflow, reply_reserve)
        self._tools = as_tools(tools)
        self._tool_format = tool_format
        self._use = tool_use(self.backend, self._tools, tool_format) if self._tools or tool_format else None
        self.last_reply: Reply | None = None
        self._start_run()
        if system is not None:
            self.add({"role": "system", "content": system})
        for message in checked_messages(messages or []):
            self.add(message)

    def _start_run(self) -> None:
        """What is asked here is to the backend one program, which ends when nobody has the conversation any more."""
        self._run = RunContext("conversation", self.backend, self._sampling)
        self._run.begin_body({})

    # -- asking ------------------------------------------------------------------------------------------------------

    def ask(self, content: Content | None = None, *, timeout: float | None = None, **options: Any) -> Reply:
        """Send a user message and wait for the reply. Without one, the messages are answered as they stand.

        Args:
            timeout: seconds; after that the reply is abandoned.
            options: those of `gen` for this reply: max_tokens=, json_schema=, regex=, choices=, dtype=, ...; and
                tool_choice: "auto", "none" (the text is taken as it is), "required" or the name of a tool (the reply
                is a call, by a grammar).

        Raises:
            GenerationError: the reply failed.
            ReadTimeoutError: it took too long.
            ContextOverflowError: the messages do not fit, and on_overflow does not help.
            InvalidProgramError, InvalidSamplingParamsError, ValueError: an option, or a message that the template
                refuses.
        In every case the conversation is then as it was before.
        """
        timeout = checked_timeout(timeout)
        pending = self.send(content, **options)
        try:
            return pending.result(timeout)
        finally:
            pending.abandon()

    def send(self, content: Content | None = None, *, tool_choice: Any = "auto", **options: Any) -> PendingReply:
        """Like `ask`, but returns at once. The reply has to be read to its end, or stopped, before the next message."""
        checked_no_open_reply(self.pending_reply)
        before = self._moment()
        try:
            self._open_turn(content)
            request = reply_request(self._run, self._tool_use(), tool_choice, options)
            self.pending_reply = self._start(request, before)
        except BaseException:
            self._go_back(before)
            raise
        return self.pending_reply

    def stream(self, content: Content | None = None, **options: Any) -> Iterator[str]:
        """Like `ask`, piece by piece. `last_reply` is the whole afterwards. Leaving the loop early stops the reply and
        keeps what was seen of it; a stream that is dropped before its first piece was never asked."""
        return ReplyStream(self.send(content, **options))

    async def aask(self, content: Content | None = None, **options: Any) -> Reply:
        """`ask` without holding up the event loop, but for tokenising and compiling a new constraint. Cancelling the
        task abandons the reply."""
        pending = self.send(content, **options)
        try:
            return await pending.aresult()
        finally:
            pending.abandon()

    def astream(self, content: Content | None = None, **options: Any) -> AsyncIterator[str]:
        """`stream` for `async for`; nothing is asked before the first piece is."""
        return AsyncReplyStream(lambda: self.send(content, **options))

    def regenerate(self, **options: Any) -> Reply:
        """Drop what follows the last question and answer it again. If that fails, nothing is dropped."""
        before = self._moment()
        starts = turn_starts(self._entries)
        if not starts or self._entries[starts[-1]].message["role"] != "user":
            raise InvalidProgramError("there is no question to answer again")
        checked_no_open_reply(self.pending_reply)
        del self._entries[starts[-1] + 1 :]
        try:
            return self.ask(**options)
        except BaseException:
            self._go_back(before)
            raise

    def _open_turn(self, content: Content | None) -> None:
        if content is not None:
            if self.open_tool_calls:
                raise InvalidProgramError(
                    "the last answer has tool calls without a result: run_tools(), or add_tool_result(call, ...) first"
                )
            self.add({"role": "user", "content": content})
        elif not self._entries or self._entries[-1].message["role"] == "assistant":
            raise InvalidProgramError("there is nothing to answer: give a text, or regenerate() the last answer")

    def _start(self, request: ReplyRequest, before: Moment) -> PendingReply:
        prompt, lost = self._limit.fit(self._entries, self._prompt, request.max_tokens)
        dropped = tuple(lost)
        started = StartedReply(self._run, request, prompt, self.max_context_len)
        self._entries = list(prompt.entries)
        self._dropped = (*self._dropped, *dropped)

        def accept(outcome: Outcome) -> Reply:
            num_calls = sum(len(entry.message.get("tool_calls") or ()) for entry in self._entries)
            self.last_reply = started.reply(outcome, self._tool_use(), num_calls, dropped)
            self._entries.append(Entry(copy.deepcopy(self.last_reply.message), started.spelling()))
            return self.last_reply

        def keep(text: str) -> Reply:
            self.last_reply = started.stopped_reply(text, dropped)
            self._entries.append(Entry(copy.deepcopy(self.last_reply.message)))
            return self.last_reply

        return PendingReply(started.call, started.execution, Settlement(accept, keep, lambda: self._go_back(before)))

    def branch(self) -> Self:
        """An independent copy. What both have in common is computed once."""
        checked_no_open_reply(self.pending_reply)
        other = copy.copy(self)
        other._entries = list(self._entries)
        other._start_run()
        return other

    # -- tools -------------------------------------------------------------------------------------------------------

    def run_tools(self, max_rounds: int = 8, *, on_tool_error: OnToolError = "raise", **options: Any) -> Reply:
        """Run the tools that the last answer calls and give their results to the model, until it calls none.

        Args:
            max_rounds: how often.
            on_tool_error: what happens where a tool raises. "raise" lets it through; the calls before it have their
                results, so `run_tools` goes on from there. "return" tells the model.
            options: as for `ask`.

        Returns:
            The first reply without tool calls; the last reply as it is, if it had none.

        Raises:
            ToolCallError: a call cannot be read or carried out, or the model still calls tools after the last round.
            Exception: what a tool raises, and as `ask`.
        """
        for _ in self._rounds(max_rounds, on_tool_error):
            for call in self.open_tool_calls:
                self.add_tool_result(call, self._tool_use().call(call, on_tool_error))
            self.ask(**options)
        return self._finished_reply()

    async def arun_tools(self, max_rounds: int = 8, *, on_tool_error: OnToolError = "raise", **options: Any) -> Reply:
        """`run_tools` with `aask`. Tools may be coroutine functions."""
        for _ in self._rounds(max_rounds, on_tool_error):
            for call in self.open_tool_calls:
                self.add_tool_result(call, await self._tool_use().acall(call, on_tool_error))
            await self.aask(**options)
        return self._finished_reply()

    def _rounds(self, max_rounds: int, on_tool_error: OnToolError) -> Iterator[None]:
        """One item for each round that the last answer asks for."""
        check_tool_loop(max_rounds, on_tool_error)
        for _ in range(max_rounds):
            if not self.open_tool_calls:
                return
            yield
        if self.open_tool_calls:
            raise ToolCallError(f"the model still calls tools after {max_rounds} rounds: run_tools() again to go on")

    def _finished_reply(self) -> Reply:
        reply = self.last_reply
        if reply is None:
            raise InvalidProgramError("there is no reply yet whose tools could be run: ask() first")
        if reply.tool_error is not None:
            raise ToolCallError(reply.tool_error)
        return reply

    def _tool_use(self) -> ToolUse:
        if self._use is None:
            if not any(entry.message.get("tool_calls") for entry in self._entries):
                return NO_TOOLS
            self._use = tool_use(self.backend, (), None)
        return self._use

    # -- tokens ------------------------------------------------------------------------------------------------------

    @property
    def num_tokens(self) -> int:
        """Length of the conversation as it stands; with what opens the reply, if the last message waits for one."""
        return self.count_tokens()

    def count_tokens(self, content: Content | None = None) -> int:
        """How long the prompt would be if this was asked now, before anything is dropped.

        Raises:
            ValueError: the template refuses these messages.
        """
        entries = [*self._entries]
        if content is not None:
            entries.append(Entry(checked_message({"role": "user", "content": content}, "message")))
        if not entries:
            return 0
        return self._prompt(entries).num_tokens

    @property
    def max_context_len(self) -> int | None:
        """The context limit in tokens; None if there is no known one."""
        return self._limit.max_context_len

    @property
    def room(self) -> int | None:
        """How many tokens the context has left; None if there is no known limit."""
        return None if self.max_context_len is None else self.max_context_len - self.num_tokens

    def explain_prompt(self) -> PromptExplanation:
        """The conversation as the model gets it: which tokens the template wrote, which are whose message, and which
        the model wrote itself. `print` shows a table."""
        return self._renderer().explain(self._entries, add_generation_prompt=waits_for_reply(self._entries))

    def _prompt(self, entries: Sequence[Entry]) -> Prompt:
        return self._renderer().prompt(entries, add_generation_prompt=waits_for_reply(entries))

    def _renderer(self) -> Renderer:
        use = self._tool_use()
        return Renderer(self.backend, use.template_tools, use.prepare)

    def calls(self) -> tuple[CallRecord, ...]:
        """Every reply that was asked for here, failed ones too: prompt token ids, parameters, what it took."""
        return self._run.graph.records()

    # -- programs ----------------------------------------------------------------------------------------------------

    def history(self) -> History:
        """The conversation as the beginning of a program, token by token: `s += chat.history()` before all else.

        Raises:
            InvalidProgramError: there are no messages, or the last answer waits for the results of tools.
        """
        if not self._entries or self.open_tool_calls:
            raise InvalidProgramError("there is nothing a program could go on from: no messages, or open tool calls")
        checked_no_open_reply(self.pending_reply)
        prompt = self._renderer().prompt(self._entries, add_generation_prompt=False)
        return as_history(self.backend, prompt, self.messages)

    @classmethod
    def from_state(cls, state: ProgramState, **options: Any) -> Self:
        """A conversation that goes on from a program's state, token by token. Waits for the state.

        Args:
            options: as for a Conversation, but for `system`, `tools`, `messages` and `backend`: these are the state's.

        Raises:
            InvalidProgramError: the state has no messages, an open one, or text after the last.
            ProgramError: the state failed.
        """
        snapshot = state.snapshot()
        for name in ("system", "tools", "messages", "backend"):
            if name in options:
                raise InvalidProgramError(f"from_state takes no {name}: the state decides it")
        chat = cls(backend=snapshot.backend, messages=list(snapshot.messages), **options)
        chat._entries[-1:] = [entry_of_state(snapshot)]
        return chat

    @classmethod
    def from_json(cls, text: str, **options: Any) -> Self:
        """A conversation of the messages that `to_json` wrote; `options` are those of a Conversation.

        Raises:
            InvalidProgramError: it is not JSON, or no list of messages.
        """
        try:
            messages = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidProgramError(f"the messages are not JSON: {error}") from error
        return cls(messages=checked_messages(messages), **options)

    def __repr__(self) -> str:
        return f"<Conversation of {len(self._entries)} messages in {self.num_turns} turns>"
