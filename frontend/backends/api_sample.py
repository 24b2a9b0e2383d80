"""SampleDraft: one sample of an API, put together from a stream, and what the language makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...sampling_params import SamplingParams
from ..generation import Sample, TokenLogprob
from ..surrogates import is_half_pair, joined_pairs
from .errors import BackendCallError
from .text_ids import TextIds

CHOICE_FIELD = "choice"


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A token of the API's model, of which only its bytes are known. `top` has the likeliest ones, if asked for."""

    piece: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


@dataclass(slots=True)
class SampleDraft:
    """What has come of a sample so far.

    Attributes:
        finish_reason: the API's word; None while it runs.
        stop_reason: the stop string that ended it, where the API tells.
        refusal: why the model does not answer, if it said so.
    """

    text: str = ""
    tokens: list[ApiToken] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    refusal: str = ""
    _half_pair: str = ""

    def add_text(self, text: str) -> str:
        """Take in what a stream adds. Returns what can be shown now: half of a surrogate pair waits for the other."""
        text = joined_pairs(self._half_pair + text)
        self._half_pair = text[-1:] if is_half_pair(text) else ""
        text = text.removesuffix(self._half_pair)
        self.text += text
        return text

    def end_text(self) -> str:
        """The stream is over: half a pair that still waits is text like any other. Returns it."""
        rest, self._half_pair = self._half_pair, ""
        self.text += rest
        return rest

    def to_sample(self, backend: str, ids: TextIds, params: SamplingParams, *, is_cut_by_length: bool) -> Sample:
        """The finished sample. Its token ids are the API's tokens if logprobs were asked for, else characters.

        Raises:
            BackendCallError: the text is not what was asked for.
        """
        if params.choices is not None:
            self.text = self._choice(backend, params, is_cut_by_length=is_cut_by_length)
        complete = None if params.grammar_spec is None else not is_cut_by_length
        if complete is False and params.on_incomplete == "raise":
            raise BackendCallError(
                f"max_tokens={params.max_tokens} cut the text off before it was complete: raise it; the text is "
                f"{self.text[:200]!r}"
            )
        characters = tuple(map(ord, self.text))
        token_ids, kept, leftover = characters, characters, ""
        if params.logprobs is not None:
            token_ids = tuple(ids.intern(token.piece) for token in self.tokens)
            kept = token_ids[: self._num_kept()]
            leftover = self.text.removeprefix(ids.decode(kept))
        return Sample(
            text=self.text,
            token_ids=token_ids,
            kept_token_ids=kept,
            leftover_text=leftover,
            finish_reason="length" if is_cut_by_length else "stop",
            stop_reason=self.stop_reason,
            logprobs=None if params.logprobs is None else tuple(_logprobs(ids, self.tokens)),
            complete=complete,
        )

    def _choice(self, backend: str, params: SamplingParams, *, is_cut_by_length: bool) -> str:
        """The choice, out of the JSON that the API was made to write."""
        assert isinstance(params.choices, tuple)
        try:
            value = json.loads(self.text)[CHOICE_FIELD]
        except (ValueError, TypeError, KeyError):
            value = None
        if value in params.choices:
            return str(value)
        why = f": max_tokens={params.max_tokens} cut it off, raise it" if is_cut_by_length else ""
        raise BackendCallError(f"the {backend} backend wrote {self.text[:200]!r}, which is none of the choices{why}")

    def _num_kept(self) -> int:
        """How many leading tokens spell whole characters of the text, and nothing else."""
        whole = self.text.encode("utf-8", "surrogatepass")
        length, num_kept = 0, 0
        for idx, token in enumerate(self.tokens):
            if not whole.startswith(token.piece, length):
                break
            length += len(token.piece)
            if length == len(whole) or whole[length] & 0xC0 != 0x80:
                num_kept = idx + 1
        return num_kept


def choices_schema(choices: Sequence[str]) -> dict[str, object]:
    """The schema of a JSON object that names one of them."""
    return {
        "type": "object",
        "properties": {CHOICE_FIELD: {"type": "string", "enum": list(choices)}},
        "required": [CHOICE_FIELD],
        "additionalProperties": False,
    }


def _logprobs(ids: TextIds, tokens: Sequence[ApiToken]) -> Iterator[TokenLogprob]:
    for token in tokens:
        top = tuple((ids.intern(piece), logprob) for piece, logprob in token.top)
        yield TokenLogprob(ids.intern(token.piece), token.logprob, top)
