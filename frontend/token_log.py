"""TokenLog: the text of a state as the model sees it: token ids that are final, then text not yet tokenised.

Text that was added in pieces is tokenised as one, when a call needs it. Ids are never tokenised again: what a call
sent or generated is what the next call sends, so the engine finds it in its cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .backend import Backend, TextSegment

MIN_JOINT_CHARS = 200
"""So much of a literal text is always tokenised together with what follows it."""


@dataclass(frozen=True, slots=True)
class JointIds:
    """A text tokenised jointly with several continuations.

    Attributes:
        head: ids that the text begins with whatever follows; may be empty.
        before: those after the head of the text alone, without the spaces that it ends with (unless they are a
            template's): they count with what follows.
        joint: those after the head of the text with each continuation.
    """

    head: list[int]
    before: list[int]
    joint: list[list[int]]


@dataclass(frozen=True, slots=True)
class Addition:
    """What a log holds beyond the one that it was branched from, in order.

    Attributes:
        boundary_text: the first characters, where they share a token with the text before the branch.
        token_ids: ids that were sent or generated.
        pending: what was not tokenised yet.
    """

    boundary_text: str
    token_ids: tuple[int, ...]
    pending: tuple[TextSegment, ...]


class TokenLog:
    """Final token ids plus pending text. Not thread-safe: one interpreter owns it.

    Attributes:
        token_ids: only grows.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.token_ids: list[int] = []
        self._pending: list[TextSegment] = []
        self._num_literal_chars = 0  # at the end of the pending text: written by the program, not template or generated
        self._shared_token_ids: tuple[int, ...] = ()
        self._shared_prefix_len: int | None = None
        self._branched_len = 0  # how many ids, and what pending text, it had when it was branched off
        self._branched_pending: tuple[TextSegment, ...] = ()

    def add_text(self, text: str, *, is_template: bool = False) -> None:
        """Add text to be tokenised later, together with its neighbours of the same kind."""
        if not text:
            return
        self._num_literal_chars = 0 if is_template else self._num_literal_chars + len(text)
        if self._pending and self._pending[-1].is_template == is_template:
            text = self._pending.pop().text + text
        self._pending.append(TextSegment(text, is_template))

    def add_generated(self, token_ids: Sequence[int], leftover_text: str = "") -> None:
        """Add tokens the model made, and text of it that they do not cover. Nothing may be pending."""
        assert not self._pending, "generated tokens cannot follow text that was not sent"
        self.token_ids.extend(token_ids)
        self.add_text(leftover_text)
        self._num_literal_chars = 0

    def encode_pending(self) -> list[int]:
        """Ids of the pending text. Changes nothing."""
        return self._encode(self._pending, is_start=not self.token_ids)

    def encode_jointly(self, continuations: Sequence[str]) -> JointIds:
        """Tokenise the pending text jointly with each of some continuations. Changes nothing.

        Of a long text only the end takes part, from the beginning of a word on that is so far back that no tokenizer
        looks across it; that the rest has the same ids by itself is checked on the first continuation.
        """
        is_start = not self.token_ids
        segments = list(self._pending)
        text = segments.pop().text if segments and not segments[-1].is_template else ""
        cut = _word_start(text, len(text) - MIN_JOINT_CHARS)
        if cut and len(continuations) > 1:
            head_ids = self._encode([*segments, TextSegment(text[:cut])], is_start=is_start)
            joint = self._encode([TextSegment(text[cut:] + continuations[0])], is_start=False)
            if self._encode([*segments, TextSegment(text + continuations[0])], is_start=is_start) == head_ids + joint:
                return self._joint_ids(head_ids, [], text[cut:], continuations, is_start=False)
        return self._joint_ids([], segments, text, continuations, is_start=is_start)

    def _joint_ids(
        self, head: list[int], segments: list[TextSegment], text: str, continuations: Sequence[str], *, is_start: bool
    ) -> JointIds:
        before = self._encode([*segments, TextSegment(text.rstrip(" "))], is_start=is_start)
        joint = [self._encode([*segments, TextSegment(text + each)], is_start=is_start) for each in continuations]
        return JointIds(head, before, joint)

    def _encode(self, segments: Sequence[TextSegment], *, is_start: bool) -> list[int]:
        segments = [segment for segment in segments if segment.text]
        return self._backend.encode(segments, at_start=is_start) if segments or is_start else []

    @property
    def pending(self) -> tuple[TextSegment, ...]:
        """The text that is not tokenised yet."""
        return tuple(self._pending)

    @classmethod
    def restored(cls, backend: Backend, token_ids: Sequence[int], pending: Sequence[TextSegment]) -> TokenLog:
        """The log of a run that ended earlier: it goes on as that one would have."""
        log = cls(backend)
        log.token_ids = list(token_ids)
        log._pending = list(pending)
        return log

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def commit(self) -> None:
        """Tokenise the pending text for good."""
        self.commit_as(self.encode_pending())

    def commit_as(self, token_ids: Sequence[int]) -> None:
        """Replace the pending text by these ids for good."""
        self.token_ids.extend(token_ids)
        self._pending.clear()
        self._num_literal_chars = 0

    def commit_but_end(self, max_tokens: int) -> tuple[int, ...]:
        """Tokenise the pending text, and make its ids final but for the last `max_tokens` of them, or fewer: only those
        that spell literal text, and never the first token of all.

        Returns:
            These last ids, which whoever called holds back: `commit_as` makes them final.
        """
        token_ids = self.encode_pending()
        num_final = len(token_ids) - self._num_literal_tokens(token_ids, max_tokens)
        self.commit_as(token_ids[:num_final])
        return tuple(token_ids[num_final:])

    def _num_literal_tokens(self, token_ids: Sequence[int], max_tokens: int) -> int:
        """How many of the pending text's ids, counted from its end, spell literal text only; at most `max_tokens`."""
        if self._num_literal_chars == 0:
            return 0
        literal = self._pending[-1].text[-self._num_literal_chars :]
        most = min(max_tokens, len(token_ids) if self.token_ids else len(token_ids) - 1)
        return next((num for num in range(most, 0, -1) if literal.endswith(self._backend.decode(token_ids[-num:]))), 0)

    def branch(self) -> TokenLog:
        """A copy that goes its own way and knows which tokens it shares with its siblings.

        The pending text stays pending in the copy, so that what a branch adds tokenises as if it had been written in
        one piece; its ids are computed here once only to know how far siblings agree.
        """
        copy = TokenLog(self._backend)
        copy.token_ids = list(self.token_ids)
        copy._pending = list(self._pending)
        copy._num_literal_chars = self._num_literal_chars
        copy._shared_token_ids = self._shared_token_ids
        copy._branched_len = len(self.token_ids)
        copy._branched_pending = tuple(self._pending)
        return copy

    def addition(self) -> Addition:
        """What was added since this log was branched off. Changes nothing.

        Generated ids are the same in it; literal text is tokenised anew only where it shares a token with text from
        before the branch.
        """
        before = "".join(segment.text for segment in self._branched_pending)
        if len(self.token_ids) == self._branched_len:
            return Addition("", (), _without_beginning(self._pending, len(before)))
        ids = self.token_ids[self._branched_len :]
        alone = self._encode(self._branched_pending, is_start=self._branched_len == 0)
        if ids[: len(alone)] == alone:
            return Addition("", tuple(ids[len(alone) :]), tuple(self._pending))
        beginning = self._backend.decode(alone)
        num_boundary_ids, text = next(
            (end, text)
            for end in range(1, len(ids) + 1)
            if (text := self._backend.decode(ids[:end])).startswith(beginning)
            and (end == len(ids) or "\ufffd" not in text[len(beginning) :])  # a token may end inside a character
        )
        return Addition(text[len(beginning) :], tuple(ids[num_boundary_ids:]), tuple(self._pending))

    def add(self, addition: Addition) -> None:
        """Write on what a branch of this log has added."""
        self.add_text(addition.boundary_text)
        if addition.token_ids:
            self.commit()
            self.add_generated(addition.token_ids)
        for segment in addition.pending:
            self.add_text(segment.text, is_template=segment.is_template)

    def share(self) -> None:
        """Remember everything up to here as what branches made from now on have in common."""
        self._shared_token_ids = (*self.token_ids, *self.encode_pending())

    @property
    def shared_prefix_len(self) -> int:
        """How many leading final tokens sibling branches have too; 0 outside a fork."""
        if self._shared_prefix_len is not None:
            return self._shared_prefix_len
        length = common_prefix_len(self._shared_token_ids, self.token_ids)
        if len(self.token_ids) >= len(self._shared_token_ids):
            self._shared_prefix_len = length
        return length


def common_prefix_len(left: Sequence[int], right: Sequence[int]) -> int:
    """Number of equal leading items."""
    length = min(len(left), len(right))
    return next((idx for idx in range(length) if left[idx] != right[idx]), length)


def _word_start(text: str, end: int) -> int:
    """The last place before `end` where a single space begins a word; 0 if there is none."""
    start = text.rfind(" ", 0, max(0, end))
    while start > 0 and (text[start - 1].isspace() or text[start + 1].isspace()):
        start = text.rfind(" ", 0, start)
    return max(0, start)


def _without_beginning(segments: Sequence[TextSegment], num_chars: int) -> tuple[TextSegment, ...]:
    rest = []
    for segment in segments:
        if len(segment.text) > num_chars:
            rest.append(TextSegment(segment.text[num_chars:], segment.is_template))
        num_chars = max(0, num_chars - len(segment.text))
    return tuple(rest)
