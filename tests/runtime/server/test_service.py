"""The engine as handlers use it: places, timeouts, cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from ramet import LLM, SamplingParams
from ramet.runtime.errors import InvalidRequestError
from ramet.runtime.request import Request
from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.errors import ApiError, as_api_error
from ramet.runtime.server.service import EngineService

pytestmark = pytest.mark.model

LONG = SamplingParams(max_tokens=2000, ignore_eos=True)


def run(llm: LLM, work: Callable[[EngineService], Awaitable[None]], **options: object) -> None:
    async def main() -> None:
        service = EngineService(llm, ServerConfig(port=0, **options))  # type: ignore[arg-type]
        service.start()
        try:
            await work(service)
            for _ in range(200):
                if service.admission.num_live == 0:
                    break
                await asyncio.sleep(0.01)
            assert service.admission.num_live == 0
        finally:
            service.close()

    asyncio.run(main())


def request(llm: LLM, text: str, params: SamplingParams) -> Request:
    ids = tuple(llm.tokenizer.encode(text))
    return Request(request_id=llm.new_request_id(), prompt_token_ids=ids, sampling_params=params)


def test_streamed_chunks_spell_the_output(smollm2: LLM) -> None:
    async def work(service: EngineService) -> None:
        params = SamplingParams(max_tokens=8, temperature=0.0)
        texts = ["The sky is", "One, two,"]
        async with await service.submit(
            lambda: [request(smollm2, text, params) for text in texts], 2, is_streamed=True
        ) as live:
            pieces = ["", ""]
            async for idx, chunk in live.chunks():
                pieces[idx] += chunk.text
            outputs = await live.succeeded()
        assert pieces == [output.outputs[0].text for output in outputs]

    run(smollm2, work)


def test_leaving_the_block_aborts_and_frees_the_place(smollm2: LLM) -> None:
    async def work(service: EngineService) -> None:
        async with await service.submit(lambda: [request(smollm2, "Once", LONG)], 1) as live:
            assert service.admission.num_live == 1
        (output,) = await live.outputs()
        assert output.error is not None

    run(smollm2, work)


def test_a_request_that_takes_too_long_is_ended(smollm2: LLM) -> None:
    async def work(service: EngineService) -> None:
        async with await service.submit(lambda: [request(smollm2, "Once", LONG)], 1) as live:
            with pytest.raises(ApiError) as caught:
                await live.succeeded()
        assert (caught.value.status, caught.value.code) == (504, "timeout")

    run(smollm2, work, request_timeout_s=0.2)


def test_who_leaves_while_requests_are_made_leaves_nothing_behind(smollm2: LLM) -> None:
    async def work(service: EngineService) -> None:
        is_made = threading.Event()

        def make() -> list[Request]:
            is_made.wait(10)
            return [request(smollm2, "Once", LONG)]

        submitting = asyncio.ensure_future(service.submit(make, 1))
        await asyncio.sleep(0.05)
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        is_made.set()

    run(smollm2, work)
    assert smollm2.generate("Hi", SamplingParams(max_tokens=1))[0].error is None


def test_a_refused_request_frees_its_place_and_says_why(smollm2: LLM) -> None:
    async def work(service: EngineService) -> None:
        params = SamplingParams(max_tokens=10**6)
        with pytest.raises(InvalidRequestError, match="context limit") as caught:
            await service.submit(lambda: [request(smollm2, "Once", params)], 1)
        assert as_api_error(caught.value, "id").status == 400

    run(smollm2, work)


def test_names_find_the_requests_of_their_tenant_only(smollm2: LLM) -> None:
    async def work(service: EngineService) -> None:
        async with await service.submit(lambda: [request(smollm2, "Once", LONG)], 1, name=("me", "r")) as live:
            with pytest.raises(ApiError) as caught:
                await service.submit(lambda: [request(smollm2, "Once", LONG)], 1, name=("me", "r"))
            assert caught.value.status == 409
            assert service.abort("you", "r") == 0
            assert service.abort("me", "r") == 1
            (output,) = await live.outputs()
            assert output.error is not None
        assert service.abort("me", None) == 0

    run(smollm2, work)
