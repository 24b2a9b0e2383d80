"""IncrementalDetokenizer: generated token ids to text, token by token, never taking back what it gave out.

Three things make this harder than calling decode at the end. A token may hold part of a character: bytes wait in an
incremental UTF-8 decoder until the character is whole. A stop string may be spread over tokens: text that could still
become one is held back until that is decided. And a caller that goes on from the text needs to know which tokens the
text is made of: where a stop string cuts a token, its tokens end before it and the rest of the text is left over.

    tokens        | Hel | lo. | \\nUs | er: |        stop string "\\nUser:"
    published     | Hel | lo. |       |     |        what may become the stop string is held, then dropped
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from .sealed_stops import SealedPart, SealedStops
from .stop_finder import StopFinder, StopMatch
from .stop_regex import StopRegex


class TokenBytes(Protocol):
    """What the detokenizer needs of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class IncrementalDetokenizer:
    """The text of one sample as it grows. Cost: linear in the text, whatever the number of steps.

    Args:
        stop_strings: end the text; which one ends it, and where, does not depend on how the text is cut into tokens:
            the one that is complete first, the longer one if two are complete at once.
        stop_regexes: likewise; see StopFinder for which counts of several.
        sealed: parts of the text that none of them cuts.
        skip_special_tokens: leave special tokens out of the text.
        include_stop_str_in_output: keep the stop string at the end of the text.
        min_tokens: stops that are complete before this many tokens are ordinary text.
        num_skipped_chars: characters at the beginning that are no part of the text: the end of the prompt, generated
            once more (see grammar/healing.py).
        strip_leading_space: take one space off the beginning; for tokens that begin a text of their own, where the
            tokenizer's `strips_leading_space` says that they spell a space too many.

    Attributes:
        stop_string: the stop string, or the pattern of the stop regex, that ended the text, None so far.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        stop_strings: Sequence[str] = (),
        stop_regexes: Sequence[StopRegex] = (),
        *,
        sealed: SealedPart | None = None,
        skip_special_tokens: bool = True,
        include_stop_str_in_output: bool = False,
        min_tokens: int = 0,
        num_skipped_chars: int = 0,
        strip_leading_space: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._stops = _stops(stop_strings, stop_regexes, sealed)
        self._may_strip_space = strip_leading_space
        self._skip_special_tokens = skip_special_tokens
        self._include_stop = include_stop_str_in_output
        self._min_tokens = min_tokens
        self._num_skipped_chars = num_skipped_chars
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._published: list[str] = []
        self._num_published = 0
        self._held = ""
        self._token_ends: list[int | None] = []  # characters of text after each token, None inside a character
        self._has_dropped = False
        self.stop_string: str | None = None

    def append(self, token_ids: Sequence[int]) -> str:
        """Take in tokens; returns the text that is now certain. Tokens after a stop string are ignored."""
        return "".join([self._append_one(token_id) for token_id in token_ids])

    def finish(self, *, drops_unfinished: bool = False) -> str:
        """No more tokens: returns what was held back. An unfinished character becomes U+FFFD, or is dropped. It may
        show only now that there was a stop string."""
        if self.stop_string is not None:
            return ""
        stop = None if self._stops is None else self._stops.finish()
        if stop is not None:
            return self._publish_stopped(stop, self._held)
        self._has_dropped = drops_unfinished and bool(self._decoder.getstate()[0])
        rest = self._held + ("" if drops_unfinished else self._decoder.decode(b"", final=True))
        self._held = ""
        return self._publish(rest)

    @property
    def text(self) -> str:
        """All that was published."""
        if len(self._published) > 1:
            self._published = ["".join(self._published)]
        return self._published[0] if self._published else ""

    @property
    def num_tokens_within_text(self) -> int:
        """Leading tokens that lie wholly inside the text: all, unless a stop string or unfinished character cut it."""
        if self.stop_string is None and not self._has_dropped:
            return len(self._token_ends)
        num_tokens = len(self._token_ends)
        while num_tokens and not self._is_inside(num_tokens - 1):
            num_tokens -= 1
        return num_tokens

    @property
    def leftover_text(self) -> str:
        """The end of the text that belongs to a token cut by a stop string."""
        num_tokens = self.num_tokens_within_text
        if num_tokens == len(self._token_ends):
            return ""
        end = self._token_ends[num_tokens - 1] if num_tokens else 0
        return self.text[end:]

    def _append_one(self, token_id: int) -> str:
        if self.stop_string is not None:
            return ""
        if self._skip_special_tokens and self._tokenizer.is_special(token_id):
            new = ""
        else:
            new = self._decoder.decode(self._tokenizer.token_bytes(token_id))
        if self._may_strip_space and new:
            self._may_strip_space = False
            new = new.removeprefix(" ")
        if self._num_skipped_chars and new:
            num_skipped = min(self._num_skipped_chars, len(new))
            self._num_skipped_chars -= num_skipped
            new = new[num_skipped:]
        is_inside_character = bool(self._decoder.getstate()[0])
        num_chars = self._num_published + len(self._held) + len(new)
        self._token_ends.append(None if is_inside_character else num_chars)
        return self._publish_decided(new)

    def _publish_decided(self, new: str) -> str:
        """Publish what is certain of the held text and the new one."""
        if self._stops is None:
            return self._publish(new)
        may_stop = len(self._token_ends) >= self._min_tokens
        for idx, char in enumerate(new):
            stop = self._stops.feed(char, may_stop=may_stop)
            if stop is not None:
                return self._publish_stopped(stop, self._held + new[: idx + 1])
        pending = self._held + new
        num_safe = len(pending) - self._stops.num_held_chars
        self._held = pending[num_safe:]
        return self._publish(pending[:num_safe])

    def _publish_stopped(self, stop: StopMatch, pending: str) -> str:
        self.stop_string = stop.reason
        self._held = ""
        num_dropped = stop.num_chars_after + (0 if self._include_stop else stop.num_chars)
        return self._publish(pending[: len(pending) - num_dropped])

    def _publish(self, text: str) -> str:
        if text:
            self._published.append(text)
            self._num_published += len(text)
        return text

    def _is_inside(self, token_idx: int) -> bool:
        end = self._token_ends[token_idx]
        return end is not None and end <= self._num_published


def _stops(
    stop_strings: Sequence[str], stop_regexes: Sequence[StopRegex], sealed: SealedPart | None
) -> StopFinder | SealedStops | None:
    if not stop_strings and not stop_regexes:
        return None
    finder = StopFinder(stop_strings, stop_regexes)
    return finder if sealed is None else SealedStops(finder, sealed)
