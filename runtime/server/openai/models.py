"""`/v1/models`: the one model that is served, under each of its names, as OpenAI's clients and Anthropic's read it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter

from ..dependencies import Service
from ..errors import ApiError
from ..service import EngineService

router = APIRouter(prefix="/v1", tags=["openai"])
_STARTED_AT = int(time.time())


@router.get("/models")
async def list_models(service: Service) -> dict[str, Any]:
    """The names by which clients may call the model that is served; answers give the first."""
    names = service.served_model_names
    data = [_model(service, name) for name in names]
    return {"object": "list", "data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]}


@router.get("/models/{name:path}")
async def get_model(service: Service, name: str) -> dict[str, Any]:
    """What is known of one name: the longest context, and what it was loaded by. 404 for others."""
    check_model(service, name)
    return _model(service, name)


def check_model(service: EngineService, name: str | None) -> str:
    """The name to answer by.

    Raises:
        ApiError: 404, there is no model of this name.
    """
    names = service.served_model_names
    if name is not None and name not in names:
        known = ", ".join(map(repr, names))
        raise ApiError(
            404, f"there is no model {name!r:.100} here, only {known}", param="model", code="model_not_found"
        )
    return name or names[0]


def _model(service: EngineService, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": _STARTED_AT,
        "created_at": datetime.fromtimestamp(_STARTED_AT, UTC).isoformat(),
        "owned_by": "ramet",
        "root": service.llm.model_name,
        "parent": None,
        "max_model_len": service.llm.max_context_len,
    }
