"""Turns chat messages into the text a model was trained on, keeping apart what the template wrote and what users wrote.

A template is a Jinja program from the model's files. Only the text it writes itself may hold special tokens; text out
of a message never becomes one. To tell them apart, the messages are rendered a second time with an unguessable mark in
place of every content, and the marks show where the contents lie.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

from ..chat_message import (
    ChatTemplateError,
    normalise,
    normalise_tools,
    option_texts,
    structure_texts,
    tool_name,
    with_argument_text,
)
from ..tool_formats import ToolFormat, knows_tools, template_format
from .chat_marks import Marks, TextSegment, align
from .template_program import OWN_VARIABLES, TemplateProgram

__all__ = ["ChatTemplate", "ChatTemplateError", "TextSegment"]

_MAX_LOCATED = 200
"""In a longer conversation than this it is not looked for which message the template refuses."""


class ChatTemplate:
    """A model's chat template. Safe to use from several threads.

    Args:
        source: Jinja source; None for a model without one, every call then raises ChatTemplateError.
        bos_token, eos_token: what the template inserts under these names.
        special_tokens: every special token of the tokenizer, needed to tell whether a text could become one.
    """

    def __init__(
        self,
        source: str | None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        special_tokens: Collection[str] = (),
    ) -> None:
        self.source = source
        self._variables: dict[str, Any] = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        tokens = {*special_tokens, bos_token, eos_token} - {None, ""}
        self._special_tokens = sorted((token for token in tokens if token), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, self._special_tokens)) or r"(?!)")
        self._program = TemplateProgram(source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The whole conversation as one text.

        Args:
            messages: each with `role` and `content`; content is a str, None, or a list of {"type": "text"} parts,
                which are joined by newlines. The arguments of `tool_calls` are an object or its JSON text, whatever
                the template wants. Other fields are passed on to the template.
            add_generation_prompt: end with what opens the assistant's next message.
            tools: JSON schemas of functions, passed on to the template.

        Raises:
            ChatTemplateError: a message is malformed, the template refuses the order of roles, or it fails.
        """
        with self.within_budget():
            plain = self._normalised(messages)
            given = normalise_tools(tools)
            return self._located(plain, lambda part: self._render(part, add_generation_prompt and part is plain, given))

    def segments(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[TextSegment]:
        """The same text as `render`, cut where the template's text and the contents meet. Cost: two renders.

        Raises:
            ChatTemplateError: as `render`; or a text holds a special token and cannot be kept apart from the template;
                or the template leaves something out: a message, the tools, a tool call.
        """
        with self.within_budget():
            return self._segments(messages, add_generation_prompt, tools)

    def role_prefix(self, messages: Sequence[Mapping[str, Any]], role: str) -> list[TextSegment]:
        """The text that opens one more message of this role after `messages`; empty for none.

        For the first message it includes what begins every conversation, a default system prompt too. For the
        assistant it is the generation prompt, where the template has one. So prefix + content + suffix, message after
        message, spells the whole conversation, as far as the template does not rewrite earlier messages.

        Raises:
            ChatTemplateError: the template does not allow this role here, or it fails.
        """
        roles = self._roles(messages)
        with self.within_budget():
            text = self._prefix_text(roles, role)
            if any(mark in text for mark in _role_marks(len(roles) + 1)):  # it moves the system prompt to the last one
                text = self._prefix_text([earlier for earlier in roles if earlier != "system"], role)
        if any(mark in text for mark in _role_marks(len(roles) + 1)):
            raise ChatTemplateError(f"this chat template repeats earlier messages in front of a later {role} message")
        return _template_segment(text)

    def role_suffix(self, messages: Sequence[Mapping[str, Any]], role: str) -> list[TextSegment]:
        """The text that closes one more message of this role after `messages`; empty for none.

        Raises:
            ChatTemplateError: the template does not allow this role here, or it fails.
        """
        roles = self._roles(messages)
        with self.within_budget():
            return _template_segment(self._suffix_text(roles, role))

    def with_source(self, source: str) -> ChatTemplate:
        """Another template for the same tokenizer."""
        return ChatTemplate(source, self._variables["bos_token"], self._variables["eos_token"], self._special_tokens)

    def with_options(self, options: Mapping[str, Any]) -> ChatTemplate:
        """The template with further variables, such as enable_thinking of Qwen's. What it makes of them counts as its
        own text, so they must not hold special tokens.

        Args:
            options: JSON values by names.

        Raises:
            ChatTemplateError: a name is one of the template's own variables, or a text may become a special token.
        """
        for name in options:
            if not name.isidentifier() or name in OWN_VARIABLES:
                raise ChatTemplateError(
                    f"chat_template_kwargs has {name!r:.80}, which cannot be a variable for the chat template: choose "
                    "another name"
                )
        for where, text in option_texts(options):
            if self._could_form_special(text):
                raise ChatTemplateError(f"{where}={text!r:.80} may become a special token in the chat template's text")
        other = copy.copy(self)  # with its program
        other._variables = {**options, **self._variables}
        return other

    def within_budget(self) -> AbstractContextManager[None]:
        """A block in which all that is asked of the template shares one TemplateBudget. Other threads wait for it."""
        return self._program.within_budget()

    @cached_property
    def tool_format(self) -> ToolFormat | None:
        """The format in which it writes tool calls; None where it writes none, or in one that is not known."""
        return template_format(lambda messages, tools, is_open: self.render(messages, is_open, tools))

    @cached_property
    def knows_tools(self) -> bool:
        """Whether it writes the tools it is given into the prompt."""
        return self.tool_format is not None or knows_tools(
            lambda messages, tools, is_open: self.render(messages, is_open, tools)
        )

    # -- rendering ---------------------------------------------------------------------------------------------------

    def _segments(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> list[TextSegment]:
        plain = self._normalised(messages)
        given = normalise_tools(tools)
        self._refuse_special_structure(plain, given)
        whole = self.render(messages, add_generation_prompt, tools)
        self._refuse_left_out_functions(whole, plain, given)
        marks = Marks(plain, given, self._could_form_special)
        try:
            marked = self._render(marks.messages, add_generation_prompt, marks.tools)
        except ChatTemplateError:
            marked = ""  # a template that looks into the contents
        else:
            self._refuse_left_out_contents(
                marks, marked, lambda changed: self._render(changed, add_generation_prompt, marks.tools)
            )
        segments = align(whole, marks.split(marked))
        if segments is not None:
            return segments
        if self._special.findall(whole) == self._special.findall(marks.pattern.sub("", marked)):
            return [TextSegment(whole, is_template=True)]
        raise ChatTemplateError(
            "a message contains a special token, and this chat template changes the content, so that the two cannot be "
            f"told apart; take {sorted(set(self._special.findall(whole)))} out of the messages"
        )

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        variables = {
            **self._variables,
            "messages": list(messages),
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return self._program.render(variables)

    def _normalised(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        plain = normalise(messages, self.source)
        if any("tool_calls" in message for message in plain) and self._wants_argument_text:
            return [with_argument_text(message) for message in plain]
        return plain

    def _roles(self, messages: Sequence[Mapping[str, Any]]) -> list[str]:
        return [str(message["role"]) for message in normalise(messages, self.source)]

    @cached_property
    def _wants_argument_text(self) -> bool:
        """Whether the template puts the arguments of a tool call into its text as they are, and so wants them as JSON
        text. Most write them as JSON themselves and want an object."""
        arguments = {"key": "value"}
        call = {"id": "probe0000", "type": "function", "function": {"name": "probe", "arguments": arguments}}
        question: dict[str, Any] = {"role": "user", "content": "x"}
        answer: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            return str(arguments) in self._render([question, answer], add_generation_prompt=False)
        except ChatTemplateError:
            pass
        try:
            self._render([question, with_argument_text(answer)], add_generation_prompt=False)
        except ChatTemplateError:
            return False
        return True

    def _located(self, messages: list[dict[str, Any]], render: Callable[[list[dict[str, Any]]], str]) -> str:
        """Render; if the template refuses the messages, say which one it was."""
        try:
            return render(messages)
        except ChatTemplateError as error:
            for end in range(1, min(len(messages), _MAX_LOCATED) + 1):
                try:
                    render(messages[:end])
                except ChatTemplateError as earlier:
                    if str(earlier) == str(error):
                        raise ChatTemplateError(f"{_described(messages, end - 1)}: {error}") from error.__cause__
            raise

    def _could_form_special(self, text: str) -> bool:
        """Whether a special token may arise where the template puts this text."""
        if self._special.search(text) is not None:
            return True
        return any(
            text.endswith(token[:length]) or text.startswith(token[length:])
            for token in self._special_tokens
            for length in range(1, len(token))
        )

    def _refuse_special_structure(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> None:
        for where, text in structure_texts(messages, tools):
            found = self._special.search(text)
            if found is not None:
                raise ChatTemplateError(
                    f"{where} contains the special token {found.group()!r}; only texts may hold it, no roles or keys"
                )

    def _refuse_left_out_functions(
        self, whole: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> None:
        for idx, tool in enumerate(tools):
            if not _is_written(tool_name(tool), whole):
                raise ChatTemplateError(
                    f"this chat template leaves out tools[{idx}]: it knows no tools; describe them in a message"
                )
        for idx, message in enumerate(messages):
            for call in message.get("tool_calls", ()):
                if not _is_written(tool_name(call), whole):
                    raise ChatTemplateError(
                        f"this chat template leaves out the tool calls of messages[{idx}]: it knows none; write them "
                        "into the content"
                    )

    @staticmethod
    def _refuse_left_out_contents(marks: Marks, marked: str, render: Callable[[list[dict[str, Any]]], str]) -> None:
        """A mark that is not there was changed by the template, or its message has no part in the text at all."""
        messages = marks.messages
        for idx in marks.left_out(marked):
            other = {**messages[idx], "content": messages[idx]["content"][::-1]}
            has_calls = "tool_calls" in other  # many templates write either the content or the calls
            if not has_calls and render([*messages[:idx], other, *messages[idx + 1 :]]) == marked:
                raise ChatTemplateError(f"{_described(messages, idx)}: this chat template leaves it out")

    # -- one more message --------------------------------------------------------------------------------------------

    def _prefix_text(self, roles: Sequence[str], role: str) -> str:
        closed = self._suffix_text(roles[:-1], roles[-1]) if roles else ""
        own = self._between(roles, role)
        if role == "assistant" and roles:
            asked = self._tail(self._render_roles(roles, add_generation_prompt=True), len(roles) - 1)
            if asked is not None and asked.startswith(closed) and asked != closed:
                return asked.removeprefix(closed)
        return own[len(_common_prefix(own, closed)) :]

    def _suffix_text(self, roles: Sequence[str], role: str) -> str:
        """What follows the content of the last of these messages, whatever comes next."""
        count = len(roles)
        try:
            alone = self._tail(self._render_roles([*roles, role]), count)
            failure = None
        except ChatTemplateError as error:
            alone, failure = None, error
        try:
            followed = self._between([*roles, role], "assistant" if role == "user" else "user")
        except ChatTemplateError:
            followed = None
        known = [text for text in (alone, followed) if text is not None]
        if not known:
            raise failure or ChatTemplateError(f"the chat template leaves out the {role} message")
        return _common_prefix(known[0], known[-1])

    def _between(self, roles: Sequence[str], role: str) -> str:
        """The text between the content of the last of these messages and the content of the next one."""
        mark = _role_marks(len(roles) + 1)[-1]
        failure: ChatTemplateError | None = None
        text, is_there = "", False
        try:
            whole = self._render_roles([*roles, role])
            is_there = mark in whole
            text = whole.partition(mark)[0]
        except ChatTemplateError as error:
            failure = error
        if not is_there:
            text = self._text_before_answered(roles, role, failure)
        return self._after_last(text, len(roles))

    def _text_before_answered(self, roles: Sequence[str], role: str, failure: ChatTemplateError | None) -> str:
        """For a message that shows up only together with the next one, such as a system prompt inside the user's."""
        mark, next_mark = _role_marks(len(roles) + 2)[-2:]
        try:
            text, is_there, _ = self._render_roles([*roles, role, "user"]).partition(mark)
        except ChatTemplateError as error:
            raise failure or error from None
        if not is_there or next_mark in text:
            raise failure or ChatTemplateError(f"the chat template leaves out the {role} message")
        return text

    def _after_last(self, text: str, count: int) -> str:
        tail = self._tail(text, count - 1) if count else text
        return text if tail is None else tail

    def _tail(self, text: str, message_idx: int) -> str | None:
        """What follows the content of a message; None where the text leaves that content out."""
        _, is_there, tail = text.rpartition(_role_marks(message_idx + 1)[-1])
        return tail if is_there else None

    def _render_roles(self, roles: Sequence[str], add_generation_prompt: bool = False) -> str:
        marks = _role_marks(len(roles))
        messages = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
        return self._render(messages, add_generation_prompt)


def _described(messages: Sequence[Mapping[str, Any]], idx: int) -> str:
    """A message by its place: that is what a template judges it by."""
    place = f"after {messages[idx - 1]['role']!r}" if idx else "as the first"
    return f"messages[{idx}] of role {messages[idx]['role']!r} {place}"


def _is_written(name: object, text: str) -> bool:
    assert isinstance(name, str)
    return name in text or json.dumps(name)[1:-1] in text


def _role_marks(count: int) -> list[str]:
    """Stand-ins for contents when only the template's own text is wanted; no content of a user is there."""
    return [f"xramet{idx}mark" for idx in range(count)]


def _template_segment(text: str) -> list[TextSegment]:
    return [TextSegment(text, is_template=True)] if text else []


def _common_prefix(left: str, right: str) -> str:
    length = 0
    for mine, other in zip(left, right, strict=False):
        if mine != other:
            break
        length += 1
    return left[:length]
