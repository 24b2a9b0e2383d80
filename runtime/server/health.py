"""`/health`: is the engine alive? `/ready`: may requests come?"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from .dependencies import Service
from .json_text import to_json

router = APIRouter(tags=["health"])


@router.get("/health")
async def health(service: Service) -> Response:
    """200 while the engine's thread lives and no step takes longer than it may, 503 otherwise."""
    return Response(to_json({"status": "ok"}), media_type="application/json")


@router.get("/ready")
async def ready(service: Service) -> Response:
    """200 while requests are taken, 503 while the server drains."""
    is_ready = not service.admission.is_draining
    return Response(to_json({"ready": is_ready}), 200 if is_ready else 503, media_type="application/json")
