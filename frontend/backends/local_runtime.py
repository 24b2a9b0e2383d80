"""Runtime: the local engine, under the name and with the methods that SGLang gives to a model it serves."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast, overload

from ...runtime.answer_stream import Answer
from ...runtime.errors import InvalidRequestError, RequestFailedError
from ...runtime.llm import LLM
from ...runtime.offline_engine import Engine
from ...runtime.tokenizer import Tokenizer
from ..backend import GenerateCall
from ..generation import Generation
from .local import LocalBackend


class Runtime(LocalBackend):
    """A model of this process that programs run on and that answers prompts.

    SGLang starts a server in a process of its own here. This starts none: nothing listens on the network, and a call
    costs no serialisation. `generate` answers as SGLang's Runtime does, in JSON; Engine has the same as objects.

    Args:
        model_path: as LLM's `model`; or an LLM there is, which then stays open.
        options: as Engine's.

    Raises:
        ModelLoadError: the model cannot be found or read.
        InvalidConfigError: an option is unknown, out of range, or asks for what there is not.
    """

    def __init__(self, model_path: LLM | str | None = None, **options: Any) -> None:
        self._engine = Engine(model_path, **options)
        super().__init__(self._engine.llm)

    @overload
    def generate(self, call: GenerateCall, /) -> Generation: ...

    @overload
    def generate(
        self,
        prompt: str | Sequence[str],
        sampling_params: Mapping[str, Any] | None = None,
        return_logprob: bool | Sequence[bool] = False,
        logprob_start_len: int | Sequence[int] | None = None,
        top_logprobs_num: int | Sequence[int] | None = None,
        lora_path: None = None,
    ) -> str: ...

    def generate(
        self,
        prompt: GenerateCall | str | Sequence[str],
        sampling_params: Mapping[str, Any] | None = None,
        return_logprob: bool | Sequence[bool] = False,
        logprob_start_len: int | Sequence[int] | None = None,
        top_logprobs_num: int | Sequence[int] | None = None,
        lora_path: None = None,
    ) -> Generation | str:
        """The JSON text of what `Engine.generate` answers: `json.loads(runtime.generate(prompt))["text"]`. Programs
        give it their calls.

        Raises:
            InvalidRequestError, InvalidSamplingParamsError: something is refused, and nothing was run.
        """
        if isinstance(prompt, GenerateCall):
            return super().generate(prompt)
        answer = self._engine.generate(
            prompt,
            sampling_params,
            return_logprob=return_logprob,
            logprob_start_len=-1 if logprob_start_len is None else logprob_start_len,
            top_logprobs_num=0 if top_logprobs_num is None else top_logprobs_num,
            lora_path=lora_path,
        )
        return json.dumps(answer)

    async def async_generate(self, prompt: str, sampling_params: Mapping[str, Any] | None = None) -> AsyncIterator[str]:
        """`async for piece in runtime.async_generate(prompt)`: the text of one prompt as it comes. Leaving it early
        cancels the request. `await Engine.async_generate(...)` gives whole answers.

        Raises:
            InvalidRequestError: more than one prompt or sample, or what `Engine.generate` refuses.
            InvalidSamplingParamsError: a sampling parameter is.
            RequestFailedError: it failed while it ran, after what there was of the text.
        """
        if not isinstance(prompt, str) or (sampling_params or {}).get("n", 1) != 1:
            raise InvalidRequestError("async_generate streams one text: give one prompt, with n=1, or use Engine")
        answers = await self._engine.async_generate(prompt, sampling_params, stream=True)
        num_given = 0
        async with aclosing(cast("AsyncGenerator[Answer, None]", answers)) as stream:
            async for answer in stream:
                reason = answer["meta_info"]["finish_reason"]
                if reason is not None and reason["type"] == "abort":
                    raise RequestFailedError(reason["message"])
                piece = answer["text"][num_given:]
                num_given += len(piece)
                if piece:
                    yield piece

    def add_request(self, prompt: str, sampling_params: Mapping[str, Any] | None = None) -> AsyncIterator[str]:
        """SGLang's other name for `async_generate`."""
        return self.async_generate(prompt, sampling_params)

    def cache_prefix(self, prefix: str) -> None:
        """Bring a text into the cache. It stays until it is evicted."""
        self._engine.generate(prefix, {"max_new_tokens": 0})

    def get_server_info(self) -> dict[str, Any]:
        """The model, every option of the engine, its limits and its counters so far."""
        return self._engine.get_server_info()

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer. It is ramet's, not one of transformers, and has `encode`, `decode`,
        `apply_chat_template`, `vocab_size` and `bos_token_id`, among others."""
        return self.llm.tokenizer

    @property
    def url(self) -> str:
        """
        Raises:
            AttributeError: always; there is no server.
        """
        raise AttributeError(
            "this Runtime runs in your own process and has no URL: use the object itself, runtime.generate(...) or "
            "backend=runtime; ramet has no server yet"
        )

    @property
    def endpoint(self) -> Runtime:
        """What programs run on: the runtime itself."""
        return self

    def shutdown(self) -> None:
        """Fail what still runs, and stop the engine if it was started here. Idempotent."""
        self.close()

    def close(self) -> None:
        super().close()
        self._engine.shutdown()
