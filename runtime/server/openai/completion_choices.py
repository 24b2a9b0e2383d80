"""ChoiceWriter: what requests have come to, as the choices of `/v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...outputs import CompletionOutput, FinishReason, RequestOutput
from ...request import Request
from ...tokenizer import Tokenizer
from .answers import extension, usage_body
from .completion_logprobs import LogprobLists
from .completion_request import CompletionAsk, CompletionRequest


class ChoiceWriter:
    """Writes choices as OpenAI does. Their index counts the samples of all prompts.

    Attributes:
        ask, body: what was asked.
    """

    def __init__(self, tokenizer: Tokenizer, ask: CompletionAsk, body: CompletionRequest) -> None:
        self._tokenizer = tokenizer
        self.ask = ask
        self.body = body
        spec = ask.sampling.grammar_spec
        self._is_json = spec is not None and spec.kind == "json_schema"

    def index(self, prompt_idx: int, sample_idx: int) -> int:
        return prompt_idx * self.ask.num_choices + sample_idx

    def choices(self, prompt_idx: int, output: RequestOutput) -> list[dict[str, Any]]:
        """All of one prompt, whole."""
        samples = output.outputs
        if self.ask.is_prompt_only:
            samples = samples * self.ask.num_choices
        return [self._choice(prompt_idx, k, output, sample) for k, sample in enumerate(samples)]

    def usage(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        return usage_body(outputs, 0 if self.ask.is_prompt_only else None)

    def prompt_text(self, output: RequestOutput | Request) -> str:
        """What an echo says."""
        if output.prompt is not None:
            return output.prompt
        return self._tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)

    def lists(self) -> LogprobLists:
        return LogprobLists(
            self._tokenizer,
            self.ask.num_logprobs or 0,
            shows_ids=bool(self.body.return_tokens_as_token_ids),
            skips_special=self.ask.sampling.skip_special_tokens,
        )

    def ending(self, reason: FinishReason, stop_reason: int | str | None, complete: bool | None) -> dict[str, Any]:
        if self.ask.is_prompt_only:
            reason, stop_reason, complete = FinishReason.LENGTH, None, None
        is_whole = self._is_json and complete is True
        is_cut = reason is FinishReason.LENGTH and not is_whole
        finish = "length" if is_cut else "stop"
        return {"finish_reason": finish, "stop_reason": stop_reason, "ramet": extension(reason.value, complete)}

    def _choice(
        self, prompt_idx: int, sample_idx: int, output: RequestOutput, sample: CompletionOutput
    ) -> dict[str, Any]:
        assert sample.finish_reason is not None
        text = "" if self.ask.is_prompt_only else sample.text
        own_ids = [] if self.ask.is_prompt_only else sample.token_ids
        token_ids = {"prompt_token_ids": output.prompt_token_ids, "token_ids": own_ids}
        return {
            "index": self.index(prompt_idx, sample_idx),
            "text": self.prompt_text(output) + text if self.ask.has_echo else text,
            "logprobs": self._logprobs(output, sample),
            **self.ending(sample.finish_reason, sample.stop_reason, sample.complete),
            **(token_ids if self.body.return_token_ids else {}),
        }

    def _logprobs(self, output: RequestOutput, sample: CompletionOutput) -> dict[str, Any] | None:
        if self.ask.num_logprobs is None:
            return None
        lists = self.lists()
        merged: dict[str, Any] = {name: [] for name in ("text_offset", "token_logprobs", "tokens", "top_logprobs")}
        parts = []
        if self.ask.has_echo:
            assert output.prompt_logprobs is not None
            num_hidden = self._num_hidden(output)
            parts.append(lists.lists(output.prompt_token_ids, output.prompt_logprobs, num_hidden, is_prompt=True))
        if not self.ask.is_prompt_only:
            assert sample.logprobs is not None
            parts.append(lists.lists(sample.token_ids, sample.logprobs, is_prompt=False))
        for part in parts:
            for name, values in part.items():
                merged[name] += values
        return merged

    def _num_hidden(self, output: RequestOutput) -> int:
        """Tokens that were put in front of a text."""
        bos = self._tokenizer.bos_token_id
        if output.prompt is None or not self._tokenizer.adds_bos or output.prompt_token_ids[:1] != [bos]:
            return 0
        assert bos is not None
        return int(not output.prompt.startswith(self._tokenizer.token_bytes(bos).decode()))
