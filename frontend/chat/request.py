"""One reply from its options to its tokens: what is asked for, the call under way, what its tokens are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...sampling_params import SamplingParams
from ...suggestions import did_you_mean
from ...tool_formats import ToolCall
from ..backend import Message
from ..calls import Call
from ..errors import InvalidProgramError, ToolCallError
from ..execution import Execution, Outcome, submit
from ..primitives import Gen, Select, gen
from ..run_context import RunContext
from ..run_options import SAMPLING_OPTIONS
from ..token_log import TokenLog
from .history import Prompt, Spelling
from .reply import Reply
from .tool_use import ToolUse

_CONSTRAINTS = ("regex", "json_schema", "ebnf", "choices", "dtype")


@dataclass(frozen=True, slots=True)
class ReplyRequest:
    """What is asked of a reply.

    Attributes:
        params: None for one that is chosen from texts.
        opening, closing: literal text that the reply begins and ends with, around what is generated.
        reads_calls: whether tool calls are looked for in the text.
    """

    part: Gen | Select
    params: SamplingParams | None
    opening: str = ""
    closing: str = ""
    reads_calls: bool = False

    @property
    def max_tokens(self) -> int | None:
        return None if self.params is None else self.params.max_tokens


def checked_sampling(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults for all replies, without those that are None.

    Raises:
        InvalidProgramError: there is no such parameter, or it is of one text only.
    """
    known = sorted(SAMPLING_OPTIONS - {"n"})
    for name in sampling:
        if name not in known:
            raise InvalidProgramError(
                f"Conversation got an unknown argument {name!r}{did_you_mean(name, known)} sampling defaults are "
                f"{', '.join(known)}; what constrains one text is an option of ask"
            )
    return {name: value for name, value in sampling.items() if value is not None}


def reply_request(run: RunContext, use: ToolUse, tool_choice: object, options: Mapping[str, Any]) -> ReplyRequest:
    """
    Args:
        options: those of `gen`, but for a name and several samples.

    Raises:
        InvalidProgramError, InvalidSamplingParamsError: an option is unknown, out of range, or contradicts others.
    """
    for name in ("name", "n"):
        if options.get(name, 1) != 1:
            raise InvalidProgramError(
                f"{name}={options[name]!r} is not allowed: a conversation has one reply at a time"
            )
    given = {name: value for name, value in options.items() if name != "n"}
    forced = use.forced(tool_choice)
    opening = closing = ""
    if forced:
        for name in _CONSTRAINTS:
            if given.get(name) is not None:
                raise InvalidProgramError(
                    f"{name} is not allowed with tool_choice={tool_choice!r}: the reply is a tool call then"
                )
        given["json_schema"] = use.schema(forced)
        opening, closing = use.format.opening, use.format.closing
        if given.get("stop") is None:
            given.setdefault("on_incomplete", "close")
    (part,) = gen("reply", **given).parts()
    assert isinstance(part, Gen | Select)
    params = run.sampling_params(part.options) if isinstance(part, Gen) else None
    reads_calls = bool(use.tools) and tool_choice != "none" and isinstance(part, Gen)
    return ReplyRequest(part, params, opening, closing, reads_calls)


class StartedReply:
    """A reply that was sent.

    Attributes:
        call, execution: of the language, so that a conversation's calls are recorded as a program's are.
        max_tokens: what the reply may have.
    """

    def __init__(self, run: RunContext, request: ReplyRequest, prompt: Prompt, max_context_len: int | None) -> None:
        """Send it.

        Raises:
            Exception: what the backend refuses it with.
        """
        self._request = request
        self._tokens = TokenLog(run.backend)
        self._tokens.commit_as((*prompt.token_ids, *prompt.tail_ids))
        self._num_known = len(prompt.token_ids)
        self._num_before = len(self._tokens.token_ids)
        self._tokens.add_text(request.opening)
        self.max_tokens = request.max_tokens
        if max_context_len is not None and request.params is not None:
            room = max_context_len - self._num_before - len(self._tokens.encode_pending())
            self.max_tokens = max(1, room if self.max_tokens is None else min(self.max_tokens, room))
        self.call = self._call(run)
        self.execution: Execution = submit(self.call, self._tokens, run)

    def _call(self, run: RunContext) -> Call:
        records = run.graph.records()
        record = run.graph.add("gen", (records[-1].call_id,) if records else (), (), self._request.part.name)
        part, params = self._request.part, self._request.params
        if isinstance(part, Select):
            record.kind = "select"
            record.choices = part.choices
            return Call(record, part.method)
        assert params is not None
        record.sampling_params = params.replace(max_tokens=self.max_tokens)
        return Call(record, value_type=part.value_type, is_healed=part.is_healed)

    def reply(self, outcome: Outcome, use: ToolUse, num_calls: int, dropped: tuple[Message, ...]) -> Reply:
        """What came of it; to be called once, before `spelling`.

        Args:
            num_calls: how many tool calls the conversation has already.
        """
        self._tokens.add_text(self._request.closing)
        text = f"{self._request.opening}{outcome.text}{self._request.closing}"
        calls: tuple[ToolCall, ...] = ()
        tool_error = None
        if self._request.reads_calls:
            try:
                text, calls = use.read(text, num_calls)
            except ToolCallError as error:
                is_cut = outcome.meta.finish_reason == "length"
                tool_error = f"{error}; max_tokens={self.max_tokens} cut it off" if is_cut else str(error)
        message: Message = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [call.to_message() for call in calls]
        return Reply(text, calls, tool_error, message, dropped, self.max_tokens, outcome.meta, outcome.value)

    def stopped_reply(self, text: str, dropped: tuple[Message, ...]) -> Reply:
        """What came of it, if it was stopped after this text."""
        text = f"{self._request.opening}{text}"
        message = {"role": "assistant", "content": text}
        return Reply(text, (), None, message, dropped, self.max_tokens, None, text)

    def spelling(self) -> Spelling:
        """The tokens of the finished reply."""
        ids = tuple(self._tokens.token_ids)
        return Spelling(ids[self._num_before :], self._tokens.pending, before=ids[self._num_known : self._num_before])
