"""History: the messages of a conversation, and for those that a model wrote the exact tokens it wrote.

The prompt of the next reply is made so that what was sent and generated before is its beginning, token by token. The
template is asked for the whole conversation with a stand-in for the last reply; what follows the stand-in is new text,
what precedes it is known as tokens. Where something earlier was changed, all is rendered anew, with a stand-in for
every reply, and the tokens of each take its place.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...prompt_explanation import TEMPLATE, PromptExplanation, PromptPart, explain_tokens
from ..backend import Backend, Message, TextSegment


@dataclass(frozen=True, slots=True)
class Spelling:
    """The tokens of a message, as generated.

    Attributes:
        token_ids: never tokenised again.
        leftover: the end of the message, where it has no tokens of its own yet: cut by a stop string, or added to what
            the model wrote.
        before: the tokens between the message with a spelling before this one, or the start, and this message. None
            once something earlier has changed.
        is_bound: `leftover` holds more than this message, so all of this is good only after the very same tokens.
    """

    token_ids: tuple[int, ...]
    leftover: tuple[TextSegment, ...] = ()
    before: tuple[int, ...] | None = None
    is_bound: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """A message; its spelling if a model wrote it."""

    message: Message
    spelling: Spelling | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is sent for a conversation.

    Attributes:
        entries: the conversation, every spelling as it stands in `token_ids`.
        token_ids: up to the end of the last spelling.
        tail: the text after it.
        tail_ids: the tokens of that.
    """

    entries: tuple[Entry, ...]
    token_ids: tuple[int, ...]
    tail: tuple[TextSegment, ...]
    tail_ids: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + len(self.tail_ids)


@dataclass(frozen=True, slots=True)
class _Stretches:
    """The text around the messages at `anchors`: one stretch more than there are anchors."""

    anchors: tuple[int, ...]
    segments: tuple[tuple[TextSegment, ...], ...]


@dataclass(frozen=True, slots=True)
class Renderer:
    """Makes prompts of entries.

    Attributes:
        tools: JSON schemas that the template is given.
        prepare: what is done to the messages before the template gets them.
    """

    backend: Backend
    tools: Sequence[Mapping[str, Any]] | None = None
    prepare: Callable[[list[Message]], list[Message]] = list

    def prompt(self, entries: Sequence[Entry], *, add_generation_prompt: bool = True) -> Prompt:
        """
        Raises:
            ValueError: the template does not allow these messages.
        """
        anchors = _anchors(entries)
        num_known = _num_known(entries, anchors)
        stretches = self._stretches(entries, anchors[max(0, num_known - 1) :], add_generation_prompt)
        if stretches is None:
            return self._continued_as_text(entries, anchors[:num_known], add_generation_prompt)
        spelled = list(entries)
        known = list(_known_ids(entries, anchors[: num_known - 1] if num_known else ()))
        for place, idx in enumerate(stretches.anchors):
            spelling = _spelling(spelled[idx])
            if spelling.before is None:
                pending = (*_leftover(spelled, anchors, idx), *stretches.segments[place])
                before = tuple(self.backend.encode(pending, at_start=not known))
                spelling = replace(spelling, before=before)
                spelled[idx] = replace(spelled[idx], spelling=spelling)
            assert spelling.before is not None
            known += [*spelling.before, *spelling.token_ids]
        leftover = _spelling(spelled[anchors[-1]]).leftover if anchors else ()
        return self._as_prompt(spelled, known, (*leftover, *stretches.segments[-1]))

    def explain(self, entries: Sequence[Entry], *, add_generation_prompt: bool) -> PromptExplanation:
        """Who wrote which tokens of the prompt. Raises like `prompt`."""
        prompt = self.prompt(entries, add_generation_prompt=add_generation_prompt)
        anchors = _anchors(prompt.entries)
        stretches = self._stretches(prompt.entries, anchors, add_generation_prompt)
        decode = self.backend.decode
        if stretches is None:
            segments = self._rendered([entry.message for entry in prompt.entries], add_generation_prompt)
            return explain_tokens(_named(segments), (*prompt.token_ids, *prompt.tail_ids), decode)
        parts: list[PromptPart] = []
        leftover: tuple[TextSegment, ...] = ()
        for place, idx in enumerate(anchors):
            entry = prompt.entries[idx]
            spelling = _spelling(entry)
            assert spelling.before is not None
            parts += explain_tokens(_named((*leftover, *stretches.segments[place])), spelling.before, decode).parts
            origin = f"messages[{idx}].content ({entry.message['role']}, as generated)"
            if spelling.token_ids:
                parts.append(PromptPart(origin, spelling.token_ids, decode(spelling.token_ids)))
            leftover = tuple(replace(segment, origin=origin) for segment in spelling.leftover)
        parts += explain_tokens(_named((*leftover, *stretches.segments[-1])), prompt.tail_ids, decode).parts
        return PromptExplanation(tuple(parts))

    def _rendered(self, messages: list[Message], add_generation_prompt: bool) -> Sequence[TextSegment]:
        prepared = self.prepare(messages)
        segments = self.backend.chat_segments(prepared, tools=self.tools, add_generation_prompt=add_generation_prompt)
        num_added = len(prepared) - len(messages)
        if not num_added:
            return segments
        return [replace(segment, origin=_renumbered(segment.origin, num_added)) for segment in segments]

    def _stretches(
        self, entries: Sequence[Entry], anchors: Sequence[int], add_generation_prompt: bool
    ) -> _Stretches | None:
        """The text around some of the messages; None where the template takes no stand-in for them, or changes it."""
        stem = f"x{secrets.token_hex(16)}x"
        messages = [entry.message for entry in entries]
        for idx in anchors:
            kept = {key: value for key, value in messages[idx].items() if key != "tool_calls"}
            messages[idx] = {**kept, "content": f"{stem}{idx}z"}
        try:
            segments = self._rendered(messages, add_generation_prompt)
        except ValueError:
            if not anchors:
                raise
            return None
        found, stretches = _split(segments, re.compile(f"{stem}(\\d+)z"))
        return _Stretches(tuple(anchors), stretches) if found == list(anchors) else None

    def _continued_as_text(
        self, entries: Sequence[Entry], known_anchors: Sequence[int], add_generation_prompt: bool
    ) -> Prompt:
        """For a template that takes no stand-ins: where its text goes on from what the known tokens spell, these stay;
        else all is tokenised anew, and no message has a spelling any more."""
        segments = self._rendered([entry.message for entry in entries], add_generation_prompt)
        known = _known_ids(entries, known_anchors)
        leftover = _spelling(entries[known_anchors[-1]]).leftover if known_anchors else ()
        whole = _text(segments)
        for ids in (known, known[1:]):  # the tokenizer may have put a begin token in front
            spelled = self.backend.decode(ids)
            if ids and whole.startswith(spelled + _text(leftover)):
                last = known_anchors[-1]
                rest = [replace(entry, spelling=None) for entry in entries[last + 1 :]]
                return self._as_prompt([*entries[: last + 1], *rest], known, _from(segments, len(spelled)))
        return self._as_prompt([replace(entry, spelling=None) for entry in entries], (), segments)

    def _as_prompt(self, entries: Sequence[Entry], token_ids: Sequence[int], tail: Sequence[TextSegment]) -> Prompt:
        tail = tuple(segment for segment in tail if segment.text)
        tail_ids = self.backend.encode(tail, at_start=not token_ids) if tail or not token_ids else []
        return Prompt(tuple(entries), tuple(token_ids), tail, tuple(tail_ids))


def _renumbered(origin: str | None, num_added: int) -> str | None:
    """Where a text comes from, not counting the messages that were put before the first one."""
    found = None if origin is None else re.match(r"messages\[(\d+)\]", origin)
    if found is None or origin is None:
        return origin
    idx = int(found[1]) - num_added
    return "tools" if idx < 0 else f"messages[{idx}]{origin[found.end() :]}"


def forget_places(entries: Sequence[Entry]) -> list[Entry]:
    """The entries after a change of something before them: the tokens between the replies are unknown again."""
    return [_without_place(entry) for entry in entries]


def _without_place(entry: Entry) -> Entry:
    if entry.spelling is None or entry.spelling.is_bound:
        return replace(entry, spelling=None)
    return replace(entry, spelling=replace(entry.spelling, before=None))


def adopt(entries: Sequence[Entry], messages: Sequence[Message]) -> list[Entry]:
    """Other messages in the place of these; those that were there before, in the same order, keep their spelling."""
    adopted: list[Entry] = []
    position = 0
    num_same = 0
    for message in messages:
        idx = next((idx for idx in range(position, len(entries)) if entries[idx].message == message), None)
        if idx is None:
            adopted.append(Entry(message))
            continue
        adopted.append(entries[idx])
        num_same += num_same == idx == len(adopted) - 1
        position = idx + 1
    return [*adopted[:num_same], *forget_places(adopted[num_same:])]


def waits_for_reply(entries: Sequence[Entry]) -> bool:
    """Whether the model has the next word."""
    return not entries or entries[-1].message["role"] != "assistant"


def _anchors(entries: Sequence[Entry]) -> list[int]:
    return [idx for idx, entry in enumerate(entries) if entry.spelling is not None]


def _num_known(entries: Sequence[Entry], anchors: Sequence[int]) -> int:
    return next((num for num, idx in enumerate(anchors) if _spelling(entries[idx]).before is None), len(anchors))


def _spelling(entry: Entry) -> Spelling:
    assert entry.spelling is not None
    return entry.spelling


def _known_ids(entries: Sequence[Entry], anchors: Sequence[int]) -> tuple[int, ...]:
    ids: list[int] = []
    for idx in anchors:
        spelling = _spelling(entries[idx])
        assert spelling.before is not None
        ids += [*spelling.before, *spelling.token_ids]
    return tuple(ids)


def _leftover(entries: Sequence[Entry], anchors: Sequence[int], idx: int) -> tuple[TextSegment, ...]:
    """What the message with a spelling before this one has left to tokenise."""
    place = anchors.index(idx)
    return _spelling(entries[anchors[place - 1]]).leftover if place else ()


def _split(
    segments: Sequence[TextSegment], pattern: re.Pattern[str]
) -> tuple[list[int], tuple[tuple[TextSegment, ...], ...]]:
    """The stand-ins that are there, in order, and what lies around them."""
    found: list[int] = []
    stretches: list[list[TextSegment]] = [[]]
    for segment in segments:
        pieces = pattern.split(segment.text)
        for piece, mark in zip(pieces[::2], [*pieces[1::2], None], strict=True):
            if piece:
                stretches[-1].append(replace(segment, text=piece))
            if mark is not None:
                found.append(int(mark))
                stretches.append([])
    return found, tuple(tuple(stretch) for stretch in stretches)


def _from(segments: Sequence[TextSegment], start: int) -> tuple[TextSegment, ...]:
    """The segments without their first `start` characters."""
    rest: list[TextSegment] = []
    for segment in segments:
        if segment.text[start:]:
            rest.append(replace(segment, text=segment.text[start:]))
        start = max(0, start - len(segment.text))
    return tuple(rest)


def _text(segments: Sequence[TextSegment]) -> str:
    return "".join(segment.text for segment in segments)


def _named(segments: Sequence[TextSegment]) -> list[tuple[str, str]]:
    return [(segment.origin or TEMPLATE, segment.text) for segment in segments]
