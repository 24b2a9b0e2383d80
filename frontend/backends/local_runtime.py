"""Runtime: the local engine, under the name and with the methods that SGLang gives to a model it serves."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast, overload

from ...runtime.answer_stream import Answer
from ...runtime.errors import InvalidConfigError, InvalidRequestError, RequestFailedError
from ...runtime.llm import LLM
from ...runtime.offline_engine import Engine
from ...runtime.server.config import ServerConfig
from ...runtime.tokenizer import Tokenizer
from ..backend import GenerateCall
from ..generation import Generation
from .local import LocalBackend

if TYPE_CHECKING:
    from ...runtime.server.listener import BackgroundServer


class Runtime(LocalBackend):
    """A model of this process that programs run on and that answers prompts.

    SGLang starts a server in a process of its own here. This one is in your process, where a call costs no
    serialisation; with a host or a port a server listens as well, on a thread, for others (extra "server"). `generate`
    answers as SGLang's Runtime does, in JSON; Engine has the same as objects.

    Args:
        model_path: as LLM's `model`; or an LLM there is, which then stays open.
        host, port: where to listen, by default at port 30000 of 127.0.0.1 if one of them is given; port 0 takes a free
            one. Nothing listens if neither is.
        api_key: what clients of the server have to send.
        options: as Engine's.

    Raises:
        ModelLoadError: the model cannot be found or read.
        InvalidConfigError: an option is unknown, out of range, or asks for what there is not; the port is taken.
    """

    def __init__(
        self,
        model_path: LLM | str | None = None,
        *,
        host: str | None = None,
        port: int | None = None,
        api_key: str | None = None,
        **options: Any,
    ) -> None:
        if api_key is not None and host is None and port is None:
            raise InvalidConfigError("api_key is for a server: give a port to listen on too")
        self._server: BackgroundServer | None = None
        self._engine = Engine(model_path, **options)
        super().__init__(self._engine.llm)
        if host is None and port is None:
            return
        try:
            self._server = _started_server(self.llm, host, port, api_key)
        except BaseException:
            self.close()
            raise

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
        """Where its server listens.

        Raises:
            AttributeError: there is none.
        """
        if self._server is None:
            raise AttributeError(
                "this Runtime listens nowhere and has no URL: use the object itself, runtime.generate(...) or "
                "backend=runtime, or make it with a port"
            )
        return self._server.url

    @property
    def endpoint(self) -> Runtime:
        """What programs run on: the runtime itself."""
        return self

    def shutdown(self) -> None:
        """Fail what still runs, and stop the engine if it was started here. Clients of the server are waited for, as
        long as its drain time is. Idempotent."""
        self.close()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        super().close()
        self._engine.shutdown()


def _started_server(llm: LLM, host: str | None, port: int | None, api_key: str | None) -> BackgroundServer:
    try:
        from ...runtime.server.listener import BackgroundServer
    except ImportError as error:
        raise InvalidConfigError(
            f"a port needs the packages of the server ({error}): in ramet's checkout, pip install '.[server]'"
        ) from error
    config = ServerConfig(
        host=host or "127.0.0.1", port=30000 if port is None else port, api_keys=() if api_key is None else (api_key,)
    )
    server = BackgroundServer(llm, config)
    server.start()
    return server
