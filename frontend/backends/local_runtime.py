"""Runtime: the local engine, under the name and with the methods that SGLang gives to a model it serves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, overload

from ...runtime.llm import LLM
from ...runtime.offline_engine import Answer, Engine
from ...runtime.tokenizer import Tokenizer
from ..backend import GenerateCall
from ..errors import InvalidProgramError
from ..generation import Generation
from .local import LocalBackend


class Runtime(LocalBackend):
    """A model of this process that programs run on and that answers prompts.

    SGLang starts a server in a process of its own here. This starts none: nothing listens on the network, and a call
    costs no serialisation. A server is `ramet serve`; programs reach one through RuntimeEndpoint.

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
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> Answer | list[Answer] | Iterator[Answer]: ...

    def generate(
        self,
        prompt: GenerateCall | str | Sequence[str],
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> Generation | Answer | list[Answer] | Iterator[Answer]:
        """Answer prompts, as `Engine.generate` does; programs give it their calls."""
        if isinstance(prompt, GenerateCall):
            return super().generate(prompt)
        return self._engine.generate(prompt, sampling_params, **options)

    async def async_generate(
        self,
        prompt: str | Sequence[str],
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> Answer | list[Answer] | AsyncIterator[Answer]:
        """`generate` for asyncio, as `Engine.async_generate`."""
        return await self._engine.async_generate(prompt, sampling_params, **options)

    def cache_prefix(self, prefix: str) -> None:
        """Bring a text into the cache. It stays until it is evicted."""
        self._engine.generate(prefix, {"max_new_tokens": 0})

    def get_server_info(self) -> dict[str, Any]:
        """The model, every option of the engine, its limits and its counters so far."""
        return self._engine.get_server_info()

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer. It is ramet's, not one of transformers."""
        return self.llm.tokenizer

    @property
    def url(self) -> str:
        """
        Raises:
            InvalidProgramError: always; there is no server.
        """
        raise InvalidProgramError(
            "this Runtime runs in your own process and has no URL: start `ramet serve` and use RuntimeEndpoint for that"
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
