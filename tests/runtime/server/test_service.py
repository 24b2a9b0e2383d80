"""The engine as handlers use it: places, timeouts, cancellation."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ramet import LLM, SamplingParams
from ramet.runtime.batch import Batch
from ramet.runtime.errors import InvalidRequestError, RequestFailedError
from ramet.runtime.outputs import RequestOutput
from ramet.runtime.request import Request
from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.errors import ApiError, as_api_error
from ramet.runtime.server.live_requests import LiveRequests
from ramet.runtime.server.preparation import Preparation
from ramet.runtime.server.service import EngineService

pytestmark = pytest.mark.model

LONG = SamplingParams(max_tokens=2000, ignore_eos=True)


def run(llm: LLM, work: Callable[[EngineService], Awaitable[None]], **options: object) -> None:
    async def main() -> None:
        service = EngineService(llm, ServerConfig(port=0, **options))  # type: ignore[arg-type]
        service.start()
        try:
            await work(service)
            for _ in range(6000):
                if service.admission.num_live == 0:
                    break
                await asyncio.sleep(0.01)
            assert service.admission.num_live == 0
        finally:
            service.close()

    asyncio.run(main())


async def last_of(live: LiveRequests) -> None:
    async for _ in live.chunks():
        pass


def is_busy(llm: LLM) -> bool:
    return llm.ask_engine(lambda engine: engine.has_work).result()


def request(llm: LLM, text: str, params: SamplingParams) -> Request:
    ids = tuple(llm.tokenizer.encode(text))
    return Request(request_id=llm.new_request_id(), prompt_token_ids=ids, sampling_params=params)


def test_streamed_chunks_spell_the_output(smollm2: LLM) -> None:
    async def work(service: EngineService) -> None:
        params = SamplingParams(max_tokens=8, temperature=0.0)
        texts = ["The sky is", "One, two,"]
        async with await service.submit(
            lambda _: [request(smollm2, text, params) for text in texts], 2, tenant="me", is_streamed=True
        ) as live:
            pieces = ["", ""]
            async for idx, chunk in live.chunks():
                pieces[idx] += chunk.text
            outputs = await live.succeeded()
        assert pieces == [output.outputs[0].text for output in outputs]

    run(smollm2, work)


def test_leaving_the_block_aborts_and_frees_the_place(smollm2: LLM) -> None:
    async def work(service: EngineService) -> None:
        async with await service.submit(lambda _: [request(smollm2, "Once", LONG)], 1, tenant="me") as live:
            assert service.admission.num_live == 1
        (output,) = await live.outputs()
        assert output.error is not None

    run(smollm2, work)


def test_a_request_that_takes_too_long_is_ended(smollm2: LLM) -> None:
    async def work(service: EngineService) -> None:
        with pytest.raises(ApiError) as caught:
            async with await service.submit(lambda _: [request(smollm2, "Once", LONG)], 1, tenant="me") as live:
                await live.succeeded()
        assert (caught.value.status, caught.value.code) == (504, "timeout")

    run(smollm2, work, request_timeout_s=0.2)


def test_the_time_limit_holds_for_what_is_made_too(smollm2: LLM) -> None:
    is_made = threading.Event()

    def make(_: Preparation) -> list[Request]:
        assert is_made.wait(30)
        return [request(smollm2, "Once", LONG)]

    async def work(service: EngineService) -> None:
        with pytest.raises(ApiError) as caught:
            await service.submit(make, 1, tenant="me", name="r")
        assert (caught.value.status, caught.value.code) == (504, "timeout")
        assert service.admission.num_live == 1  # the worker is still at it
        is_made.set()

    run(smollm2, work, request_timeout_s=0.1)
    assert not is_busy(smollm2)


def test_what_waits_for_a_worker_is_never_made_once_nobody_wants_it(smollm2: LLM) -> None:
    is_free = threading.Event()
    made: list[str] = []

    def hold(_: Preparation) -> list[Request]:
        is_free.wait(30)
        raise ValueError("held")

    async def work(service: EngineService) -> None:
        held = [asyncio.ensure_future(service.submit(hold, 1, tenant="me")) for _ in range(4)]
        await asyncio.sleep(0.05)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(service.submit(lambda _: made.append("it") or [], 1, tenant="me"), 0.1)  # type: ignore[func-returns-value]
        await asyncio.sleep(0.05)
        assert service.admission.num_live == len(held)
        is_free.set()
        await asyncio.gather(*held, return_exceptions=True)

    run(smollm2, work)
    assert made == []


def test_the_end_of_the_server_reaches_what_is_made(smollm2: LLM) -> None:
    is_made = threading.Event()
    is_begun = threading.Event()
    asked: list[list[Request]] = []

    def make(_: Preparation) -> list[Request]:
        is_begun.set()
        assert is_made.wait(30)
        asked.append([request(smollm2, "Once", LONG)])
        return asked[0]

    async def work(service: EngineService) -> None:
        submitting = asyncio.ensure_future(service.submit(make, 1, tenant="me"))
        calling = asyncio.ensure_future(service.workers.call("me", lambda: is_made.wait(30)))
        while not is_begun.is_set():
            await asyncio.sleep(0.01)
        assert service.is_answering
        assert service.end_all() == 1
        service.workers.end_calls()
        for waiting in (submitting, calling):
            with pytest.raises(ApiError) as caught:
                await waiting
            assert (caught.value.status, caught.value.code) == (503, "shutting_down")
        assert service.admission.num_live == 0
        assert service.end_all() == 0

    run(smollm2, work)  # its loop is closed
    is_made.set()
    while not asked:
        time.sleep(0.01)
    assert not is_busy(smollm2)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_what_failed_is_said_and_not_what_was_cancelled_for_it(
    smollm2: LLM, monkeypatch: pytest.MonkeyPatch, is_streamed: bool
) -> None:
    requests = [request(smollm2, text, LONG) for text in ("Hi", "A zebra", "Ho")]
    runner = smollm2._engine.runner
    prepare = runner.prepare

    def failing(batch: Batch) -> Any:
        step = prepare(batch)

        def run_step() -> Any:
            if any(part.sequence.request.prompt_token_ids == requests[1].prompt_token_ids for part in batch.scheduled):
                raise RuntimeError("a broken kernel")
            return step()

        return run_step

    async def work(service: EngineService) -> None:
        async with await service.submit(lambda _: requests, 3, tenant="me", is_streamed=is_streamed) as live:
            with pytest.raises(RequestFailedError, match=requests[1].request_id) as caught:
                await (last_of(live) if is_streamed else live.succeeded())
        assert as_api_error(caught.value, "id").status == 500

    monkeypatch.setattr(runner, "prepare", failing)
    run(smollm2, work)


def test_who_leaves_while_requests_are_made_leaves_nothing_behind(smollm2: LLM) -> None:
    async def work(service: EngineService) -> None:
        is_made = threading.Event()

        def make(_: Preparation) -> list[Request]:
            is_made.wait(10)
            return [request(smollm2, "Once", LONG)]

        submitting = asyncio.ensure_future(service.submit(make, 1, tenant="me"))
        await asyncio.sleep(0.05)
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        is_made.set()

    run(smollm2, work)
    assert smollm2.generate("Hi", SamplingParams(max_tokens=1))[0].error is None


def test_what_is_left_of_the_requests_is_not_made_once_nobody_wants_it(smollm2: LLM) -> None:
    """As when each of many prompts has a grammar of its own: the place is wanted by others."""
    prepared: list[Request] = []

    async def work(service: EngineService) -> None:
        is_begun, has_left = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def prepare(request: Request) -> Request:
            prepared.append(request)
            loop.call_soon_threadsafe(is_begun.set)
            assert has_left.wait(30)
            return request

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(smollm2, "prepare", prepare)
            requests = [request(smollm2, "Once", LONG) for _ in range(5)]
            submitting = asyncio.ensure_future(service.submit(lambda _: requests, 5, tenant="me"))
            await is_begun.wait()
            submitting.cancel()
            await asyncio.gather(submitting, return_exceptions=True)
            assert service.admission.num_live == 5  # the worker is still at it
            has_left.set()
            while service.admission.num_live:
                await asyncio.sleep(0.01)

    run(smollm2, work)
    assert len(prepared) == 1


def test_a_refused_request_frees_its_place_and_says_why(smollm2: LLM) -> None:
    async def work(service: EngineService) -> None:
        params = SamplingParams(max_tokens=10**6)
        with pytest.raises(InvalidRequestError, match="context limit") as caught:
            await service.submit(lambda _: [request(smollm2, "Once", params)], 1, tenant="me")
        assert as_api_error(caught.value, "id").status == 400

    run(smollm2, work)


def test_names_find_the_requests_of_their_tenant_only(smollm2: LLM) -> None:
    async def work(service: EngineService) -> None:
        async with await service.submit(lambda _: [request(smollm2, "Once", LONG)], 1, tenant="me", name="r") as live:
            with pytest.raises(ApiError) as caught:
                await service.submit(lambda _: [request(smollm2, "Once", LONG)], 1, tenant="me", name="r")
            assert caught.value.status == 409
            assert service.abort("you", "r") == 0
            assert service.abort("me", "r") == 1
            (output,) = await live.outputs()
            assert output.error is not None
        assert service.abort("me", None) == 0

    run(smollm2, work)


def test_a_listener_that_raises_keeps_no_answer_back(smollm2: LLM, caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: Request, output: RequestOutput) -> None:
        raise ValueError("impossible")

    async def work(service: EngineService) -> None:
        service.finished.append(fail)

        def make(preparation: Preparation) -> list[Request]:
            return [request(smollm2, text, SamplingParams(max_tokens=2)) for text in ("Once", "Twice")]

        async with await service.submit(make, 2, tenant="") as live:
            outputs = await asyncio.wait_for(live.outputs(), timeout=60)
        assert [output.finished for output in outputs] == [True, True]

    run(smollm2, work)
    assert sum("passed on" in record.getMessage() for record in caplog.records) == 2
