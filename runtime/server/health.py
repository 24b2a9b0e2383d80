"""`/health`: is the engine alive? `/ready`: may requests come? Neither asks the engine, whose step may hang."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from .dependencies import Service
from .json_text import to_json

router = APIRouter(tags=["health"])


@router.get("/health")
async def health(service: Service) -> Response:
    """200 while the engine's thread lives and no step takes longer than it may, 503 with the reason otherwise."""
    fault = service.engine_fault()
    return _answer({"status": "ok"} if fault is None else {"status": "unhealthy", "reason": fault}, fault)


@router.get("/ready")
async def ready(service: Service) -> Response:
    """200 while requests are taken, 503 with the reason while the server drains or the engine is not well."""
    fault = "the server is shutting down" if service.admission.is_draining else service.engine_fault()
    return _answer({"ready": True} if fault is None else {"ready": False, "reason": fault}, fault)


def _answer(body: dict[str, Any], fault: str | None) -> Response:
    headers = {"cache-control": "no-store"} | ({} if fault is None else {"retry-after": "5"})
    return Response(to_json(body), 200 if fault is None else 503, headers, "application/json")
