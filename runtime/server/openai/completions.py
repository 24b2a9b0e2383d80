"""`/v1/completions`."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from starlette.responses import Response

from ...request import Request
from ..chat.wording import in_words_of
from ..dependencies import Caller, RequestId, Service
from ..json_route import JsonRoute
from ..live_requests import LiveRequests
from ..preparation import Preparation
from ..service import EngineService
from ..streaming import EventStream, answer_unless_disconnected
from ..tenant import Tenant
from .answers import Heading, end_of_error, json_response
from .completion_choices import ChoiceWriter
from .completion_request import CompletionAsk, CompletionRequest, completion_requests
from .completion_stream import CompletionStream
from .models import check_model

router = APIRouter(route_class=JsonRoute, prefix="/v1", tags=["openai"])


@router.post("/completions")
async def create_completion(
    body: CompletionRequest, http: HttpRequest, service: Service, caller: Caller, request_id: RequestId
) -> Response:
    """How texts, or lists of token ids, go on."""
    model = check_model(service, body.model)
    ask = await service.workers.call(caller.name, lambda: body.ask(service.config))
    heading = Heading(f"cmpl-{request_id.removeprefix('req-')}", "text_completion", model)
    writer = ChoiceWriter(service.llm.tokenizer, ask, body)
    submit = partial(_submit, service, caller, ask, body)
    if body.stream:
        stream = CompletionStream(service, caller, heading, writer)
        return EventStream(stream.events(submit), end_of_error, request_id)

    async def answer() -> Response:
        async with await submit() as live:
            outputs = await live.succeeded()

        def written() -> Response:
            choices = [choice for idx, output in enumerate(outputs) for choice in writer.choices(idx, output)]
            return json_response(heading.body(choices=choices, usage=writer.usage(outputs)))

        is_long = ask.num_logprobs is not None
        return await service.workers.call(caller.name, written) if is_long else written()

    return await answer_unless_disconnected(http, answer())


async def _submit(service: EngineService, caller: Tenant, ask: CompletionAsk, body: CompletionRequest) -> LiveRequests:
    def make(preparation: Preparation) -> list[Request]:
        for idx, prompt in enumerate(ask.prompts):
            if isinstance(prompt, str):
                service.check_prompt_len(len(prompt), "prompt" if len(ask.prompts) == 1 else f"prompt[{idx}]")
        return completion_requests(ask, body, service.llm, caller, preparation)

    with in_words_of(body.names(), None):
        return await service.submit(
            make,
            len(ask.prompts) * ask.sampling.num_sequences,
            tenant=caller.name,
            is_streamed=bool(body.stream),
            is_constrained=ask.sampling.grammar_spec is not None,
            name=body.own_id,
        )
