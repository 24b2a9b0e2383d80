"""EndpointTokens: a program's ids as a server takes them: its own token ids, where it tokenises for us, or text."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ..backend import TextSegment
from .endpoint_client import EndpointClient
from .errors import BackendCallError, UnsupportedByBackendError
from .text_ids import TOKEN_BASE, TextIds, check_unicode

_MAX_KEPT_SPANS = 512
_MARK = re.compile(r"<\|[^<>|\s]{1,40}\|>|</?[a-z_]{1,30}>|\[/?[A-Z_]{2,20}\]")
"""What special tokens look like."""


class EndpointTokens:
    """Turns ids into the part of a request that says what the prompt is, and generated ids back.

    With `uses_ids` every literal text is tokenised by the server, once, and what was generated is sent again as the ids
    that it came as. Without, all is one text, which the server tokenises anew at each call.
    """

    def __init__(self, ids: TextIds, client: EndpointClient, *, uses_ids: bool, is_ramet: bool) -> None:
        self.uses_ids = uses_ids
        self._ids = ids
        self._client = client
        self._is_ramet = is_ramet
        self._spans: OrderedDict[tuple[tuple[TextSegment, ...], bool], list[int]] = OrderedDict()

    def check(self, token_ids: Sequence[int]) -> None:
        """
        Raises:
            ValueError: the text cannot be sent at all.
            UnsupportedByBackendError: the server would take a text of the program for a mark of the template.
        """
        segments = self._ids.segments(token_ids)
        marks: set[str] = set()
        for segment in segments:
            check_unicode(segment.text)
            if segment.is_template:
                marks.update(_MARK.findall(segment.text))
        if self._is_ramet and self.uses_ids:
            return  # it is told which text is whose
        for segment in segments:
            found = None if segment.is_template else next((mark for mark in marks if mark in segment.text), None)
            if found is not None:
                raise UnsupportedByBackendError(
                    f"a text holds {found!r}, which this server would take for the chat template's own mark, since it "
                    "is sent one text and cannot tell: take it out, or run on a LocalBackend"
                )

    async def prompts(self, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Several prompts, as fields of one request."""
        if not self.uses_ids:
            return {"text": [self._ids.decode(token_ids) for token_ids in prompts]}
        return {"input_ids": [await self._server_ids(token_ids) for token_ids in prompts]}

    async def learn(self, server_ids: Sequence[int]) -> None:
        """Ask for the spelling of tokens that were not seen before, so that `decode` knows them."""
        unknown = sorted({token_id for token_id in server_ids if not self._ids.is_known(TOKEN_BASE + token_id)})
        if not unknown:
            return
        try:
            answer = await self._client.request("POST", "/detokenize", {"tokens": [[token_id] for token_id in unknown]})
        except BackendCallError as error:
            if error.status in (404, 405):
                return
            raise
        texts, spelled = answer.get("text"), answer.get("bytes")
        if isinstance(spelled, list) and len(spelled) == len(unknown):
            pieces = [bytes.fromhex(piece) for piece in spelled]
        elif isinstance(texts, list) and len(texts) == len(unknown):
            pieces = [str(text).encode("utf-8", "surrogatepass") for text in texts]
        else:
            raise BackendCallError(f"{self._client.base_url}/detokenize gave no list of {len(unknown)} texts")
        for token_id, piece in zip(unknown, pieces, strict=True):
            self._ids.learn(TOKEN_BASE + token_id, piece)

    async def _server_ids(self, token_ids: Sequence[int]) -> list[int]:
        found: list[int] = []
        for is_token, group in groupby(token_ids, lambda token_id: token_id >= TOKEN_BASE):
            if is_token:
                found += [token_id - TOKEN_BASE for token_id in group]
            else:
                found += await self._tokenised(tuple(self._ids.segments(list(group))), at_start=not found)
        return found

    async def _tokenised(self, segments: tuple[TextSegment, ...], *, at_start: bool) -> list[int]:
        key = (segments, at_start)
        if key not in self._spans:
            if self._is_ramet:
                pieces = [{"text": segment.text, "is_template": segment.is_template} for segment in segments]
                body: dict[str, Any] = {"segments": pieces, "at_start": at_start}
            else:
                text = "".join(segment.text for segment in segments)
                body = {"prompt": text, "add_special_tokens": at_start}
            answer = await self._client.request("POST", "/tokenize", body)
            tokens = answer.get("tokens") if isinstance(answer, dict) else None
            if not isinstance(tokens, list) or not all(isinstance(token_id, int) for token_id in tokens):
                raise BackendCallError(f"{self._client.base_url}/tokenize gave no list of token ids")
            self._spans[key] = tokens
            if len(self._spans) > _MAX_KEPT_SPANS:
                self._spans.popitem(last=False)
        self._spans.move_to_end(key)
        return self._spans[key]
