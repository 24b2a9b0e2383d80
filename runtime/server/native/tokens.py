"""`/tokenize`, `/detokenize` and `/tokenizer_info`, for clients that have no tokenizer of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence, Sized
from typing import Annotated, Any, cast

from fastapi import APIRouter
from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from ....sampling_params import SamplingParams
from ...chat_template import TextSegment
from ..body import Body
from ..body_types import ListOf
from ..chat.ask import ChatAsk, ToolChoice
from ..chat.run import read_prompt
from ..chat.tools import function_tool
from ..dependencies import Caller, Service
from ..errors import ApiError
from ..json_route import JsonRoute
from ..json_text import to_json
from ..service import EngineService
from ..streaming import answer_unless_disconnected
from ..tenant import Tenant

router = APIRouter(route_class=JsonRoute, tags=["native"])
Info = dict[str, Any]


class Segment(BaseModel):
    """Text, and whether it is a chat template's, whose special tokens are meant as such."""

    text: StrictStr
    is_template: StrictBool = False


class TokenizeBody(Body):
    """Give one of `prompt`, `messages` and `segments`. What goes with `messages` means what it does in a chat."""

    prompt: StrictStr | ListOf[StrictStr] | None = None
    add_special_tokens: StrictBool = True
    return_token_strs: StrictBool = False
    messages: ListOf[dict[str, Any]] | None = None
    tools: ListOf[dict[str, Any]] | None = None
    add_generation_prompt: StrictBool = True
    continue_final_message: StrictBool = False
    chat_template: StrictStr | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    segments: ListOf[Segment] | None = None
    at_start: StrictBool = True


class DetokenizeBody(Body):
    """One list of token ids, or a list of such lists."""

    tokens: Annotated[
        ListOf[StrictInt] | ListOf[ListOf[StrictInt]], Field(description="Token ids, or a list of lists of them.")
    ]
    skip_special_tokens: StrictBool = True


@router.post("/tokenize")
async def tokenize(body: TokenizeBody, http: HttpRequest, service: Service, tenant: Caller) -> Response:
    """{"tokens", "count", "max_model_len"}: the tokens that the model would be given.

    Special tokens that a prompt spells become these tokens, as they do in `/v1/completions`; those that a message
    spells do not. Of several prompts `tokens` and `count` are lists.
    """
    given = [name for name in ("prompt", "messages", "segments") if getattr(body, name) is not None]
    if len(given) != 1:
        raise ApiError(400, f"give one of prompt, messages and segments, not {' and '.join(given) or 'none'}")
    return await _worked_out(http, service, tenant, lambda: _tokenized(service, body))


@router.post("/detokenize")
async def detokenize(body: DetokenizeBody, http: HttpRequest, service: Service, tenant: Caller) -> Response:
    """{"text", "prompt", "bytes"}: the text, by default without special tokens, as SGLang gives it; the text with
    them, as vLLM does; and the bytes that the tokens spell, as hexadecimal digits. Lists for a list of lists."""

    def spelled() -> Info:
        tokenizer, vocab_size = service.llm.tokenizer, service.llm.tokenizer.vocab_size
        is_single = not (body.tokens and isinstance(body.tokens[0], list))
        lists = cast(list[list[int]], [body.tokens] if is_single else body.tokens)
        num_tokens, most = _total_len(service, lists, "tokens"), service.max_prompt_chars
        if num_tokens > most:
            raise ApiError(400, f"tokens has {num_tokens} ids, and this server takes {most} at a time", param="tokens")
        for token_id in itertools.chain.from_iterable(lists):
            if not 0 <= token_id < vocab_size:
                raise ApiError(400, f"tokens has {token_id}, which is not in [0, {vocab_size})", param="tokens")
        found: Info = {
            "text": [tokenizer.decode(ids, skip_special_tokens=body.skip_special_tokens) for ids in lists],
            "prompt": [tokenizer.decode(ids, skip_special_tokens=False) for ids in lists],
            "bytes": [b"".join(map(tokenizer.token_bytes, ids)).hex() for ids in lists],
        }
        return {name: values[0] for name, values in found.items()} if is_single else found

    return await _worked_out(http, service, tenant, spelled)


@router.get("/tokenizer_info")
async def tokenizer_info(service: Service) -> Response:
    """The special tokens and the chat template, under the names of a Hugging Face tokenizer's configuration."""
    tokenizer = service.llm.tokenizer
    meta = tokenizer.meta
    bos, eos = (
        None if token_id is None else tokenizer.id_to_token(token_id)
        for token_id in (meta.bos_token_id, meta.eos_token_id)
    )
    found = {
        "tokenizer_class": type(tokenizer).__name__,
        "bos_token": bos,
        "eos_token": eos,
        "pad_token": eos,  # nothing is padded here, but clients that do need one
        "add_bos_token": meta.adds_bos,
        "additional_special_tokens": list(tokenizer.special_tokens),
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": service.llm.max_context_len,
        "chat_template": meta.chat_template,
    }
    return Response(to_json(found), media_type="application/json")


async def _worked_out(http: HttpRequest, service: EngineService, tenant: Tenant, work: Callable[[], Info]) -> Response:
    """A worker does it and writes it down; what is wrong with a text is the client's fault."""
    working = service.workers.call_aside(tenant.name, lambda: to_json(work()))
    answer = await answer_unless_disconnected(http, working)
    return Response(answer, media_type="application/json")


def _total_len(service: EngineService, prompts: Sequence[Sized], param: str) -> int:
    """Of all of them; an empty one is work as well, and counts as 1.

    Raises:
        ApiError: they are too many.
    """
    most = service.config.max_prompts
    if len(prompts) > most:
        raise ApiError(400, f"{param} has {len(prompts)} prompts, and this server takes {most} at a time", param=param)
    return sum(max(len(prompt), 1) for prompt in prompts)


def _tokenized(service: EngineService, body: TokenizeBody) -> Info:
    tokenizer = service.llm.tokenizer
    if body.segments is not None:
        service.check_prompt_len(sum(max(len(segment.text), 1) for segment in body.segments), "segments")
        segments = [TextSegment(segment.text, segment.is_template) for segment in body.segments]
        rows = [tokenizer.encode_segments(segments, is_text_start=body.at_start)]
    elif body.messages is not None:
        rows = [list(_chat_tokens(service, body, body.messages))]
    else:
        texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt or []
        service.check_prompt_len(_total_len(service, texts, "prompt"), "prompt")
        rows = tokenizer.encode_batch(texts, add_special_tokens=body.add_special_tokens, parse_special=True)
    found: Info = {"tokens": rows, "count": list(map(len, rows))}
    if body.return_token_strs:
        found["token_strs"] = [list(map(tokenizer.id_to_token, row)) for row in rows]
    if not isinstance(body.prompt, list):
        found = {name: values[0] for name, values in found.items()}
    return {**found, "max_model_len": service.llm.max_context_len}


def _chat_tokens(service: EngineService, body: TokenizeBody, messages: list[dict[str, Any]]) -> tuple[int, ...]:
    ask = ChatAsk(
        messages=messages,
        sampling=SamplingParams(),
        tools=[function_tool(idx, tool) for idx, tool in enumerate(body.tools or ())],
        tool_choice=ToolChoice("none"),  # they are part of the prompt, whether calls of them can be read or not
        continues_last=body.continue_final_message,
        chat_template=body.chat_template,
        template_options=body.chat_template_kwargs,
    )
    return read_prompt(service, ask, opens_answer=body.add_generation_prompt).token_ids
