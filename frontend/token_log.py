"""TokenLog: the text of a state as the model sees it: token ids that are final, then text not yet tokenised.

Text that was added in pieces is tokenised as one, when a call needs it. Ids are never tokenised again: what a call
sent or generated is what the next call sends, so the engine finds it in its cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from .backend import Backend, TextSegment


class TokenLog:
    """Final token ids plus pending text. Not thread-safe: one interpreter owns it.

    Attributes:
        token_ids: only grows.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.token_ids: list[int] = []
        self._pending: list[TextSegment] = []
        self._shared_token_ids: tuple[int, ...] = ()
        self._shared_prefix_len: int | None = None

    def add_text(self, text: str, *, is_template: bool = False) -> None:
        """Add text to be tokenised later, together with its neighbours of the same kind."""
        if not text:
            return
        if self._pending and self._pending[-1].is_template == is_template:
            text = self._pending.pop().text + text
        self._pending.append(TextSegment(text, is_template))

    def add_generated(self, token_ids: Sequence[int], leftover_text: str = "") -> None:
        """Add tokens the model made, and text of it that they do not cover. Nothing may be pending."""
        assert not self._pending, "generated tokens cannot follow text that was not sent"
        self.token_ids.extend(token_ids)
        self.add_text(leftover_text)

    def encode_pending(self, continuation: str = "") -> list[int]:
        """Ids of the pending text, tokenised jointly with a continuation. Changes nothing."""
        segments = list(self._pending)
        if continuation:
            if segments and not segments[-1].is_template:
                continuation = segments.pop().text + continuation
            segments.append(TextSegment(continuation))
        return self._encode(segments)

    def _encode(self, segments: Sequence[TextSegment]) -> list[int]:
        is_start = not self.token_ids
        return self._backend.encode(segments, at_start=is_start) if segments or is_start else []

    def encode_pending_without_last_spaces(self) -> list[int]:
        """Ids of the pending text up to the spaces that it ends with, if they are no template's. Changes nothing."""
        segments = list(self._pending)
        if segments and not segments[-1].is_template:
            text = segments.pop().text.rstrip(" ")
            segments += [TextSegment(text)] if text else []
        return self._encode(segments)

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

    def branch(self) -> TokenLog:
        """A copy that goes its own way and knows which tokens it shares with its siblings.

        The pending text stays pending in the copy, so that what a branch adds tokenises as if it had been written in
        one piece; its ids are computed here once only to know how far siblings agree.
        """
        copy = TokenLog(self._backend)
        copy.token_ids = list(self.token_ids)
        copy._pending = list(self._pending)
        copy._shared_token_ids = self._shared_token_ids
        return copy

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
