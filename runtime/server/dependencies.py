"""What handlers of routes ask for by the types of their parameters."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from .service import EngineService
from .tenant import Tenant


async def _service(http: Request) -> EngineService:
    service = http.app.state.service
    assert isinstance(service, EngineService)
    return service


async def _tenant(http: Request) -> Tenant:
    tenant = http.state.tenant
    assert isinstance(tenant, Tenant)
    return tenant


async def _request_id(http: Request) -> str:
    return str(http.state.request_id)


Service = Annotated[EngineService, Depends(_service)]
Caller = Annotated[Tenant, Depends(_tenant)]
RequestId = Annotated[str, Depends(_request_id)]
