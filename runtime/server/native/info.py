"""What a server says of itself: which model it has, with which options, and how much it has to do."""

from __future__ import annotations

import dataclasses
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from ....sampling_params import SamplingParams
from ...cache_namespace import CacheNamespace
from ...request import Request
from ..dependencies import Caller, Service
from ..errors import ApiError
from ..json_text import to_json
from ..service import EngineService
from ..tenant import NOBODY

router = APIRouter(tags=["native"])
Info = dict[str, Any]


@router.get("/get_model_info")
@router.get("/model_info", include_in_schema=False)
async def model_info(service: Service) -> Info:
    """The model, its chat template, and that this server is ramet's."""
    llm = service.llm
    meta, tokenizer = llm.tokenizer.meta, llm.tokenizer
    return {
        "model_path": llm.model_name,
        "served_model_name": service.served_model_names[0],
        "tokenizer_path": llm.model_name,
        "is_generation": True,
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "max_model_len": llm.max_context_len,
        "vocab_size": tokenizer.vocab_size,
        "chat_template": meta.chat_template,
        "bos_token": _token(service, meta.bos_token_id),
        "eos_token": _token(service, meta.eos_token_id),
        "ramet": {"version": version("ramet")},
    }


@router.get("/server_info")
@router.get("/get_server_info", include_in_schema=False)
async def server_info(service: Service, tenant: Caller) -> Info:
    """The options of the engine and its limits; for admin keys its counters too."""
    llm, config = service.llm, service.config
    found = {
        "model_path": llm.model_name,
        "served_model_name": service.served_model_names[0],
        "tp_size": llm.config.tensor_parallel_size,
        "dp_size": 1,
        "version": version("ramet"),
        "kernels": llm.kernels_name,
        "num_threads": llm.num_threads,
        "max_context_len": llm.max_context_len,
        "max_prompts": config.max_prompts,
        "max_n": config.max_n,
        "max_waiting_sequences": config.max_waiting_sequences,
        "internal_states": [{}],  # SGLang's benchmark looks into it
        **dataclasses.asdict(llm.config),
    }
    if tenant.is_admin:
        found["metrics"] = dataclasses.asdict(await service.ask_while_well(lambda engine: engine.metrics_snapshot()))
    return found


@router.get("/v1/loads")
async def loads(service: Service) -> Info:
    """How many samples run and wait, for routers. For admin keys."""
    return {"version": version("ramet"), "dp_rank_count": 1, "loads": [_load(service)]}


@router.get("/get_load", include_in_schema=False)
async def get_load(service: Service) -> list[Info]:
    return [_load(service)]


@router.get("/health_generate")
async def health_generate(service: Service) -> Response:
    """200 when the model has generated a token just now. A server that is full has done so a moment ago."""
    llm = service.llm
    request = Request(
        request_id=llm.new_request_id(),
        prompt_token_ids=(0,),
        sampling_params=SamplingParams(max_tokens=1),
        cache_namespace=CacheNamespace("", "health"),
    )
    try:
        async with await service.submit(lambda _: [request], 1, tenant=NOBODY) as live:
            await service.while_well(live.succeeded())
    except ApiError as error:
        if error.status != 429:
            raise
    return Response(to_json({"status": "ok"}), media_type="application/json")


def _load(service: EngineService) -> Info:
    num_live = service.admission.num_live
    num_running = min(num_live, service.llm.config.max_num_seqs)
    return {
        "dp_rank": 0,
        "num_running_reqs": num_running,
        "num_waiting_reqs": num_live - num_running,
        "num_total_reqs": num_live,
        "num_reqs": num_live,
    }


def _token(service: EngineService, token_id: int | None) -> str | None:
    return None if token_id is None else service.llm.tokenizer.id_to_token(token_id)
