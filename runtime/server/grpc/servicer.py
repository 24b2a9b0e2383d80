"""The calls of ramet.proto over the same engine, tenants and limits as HTTP has."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing
from importlib.metadata import version
from typing import NoReturn, TypeAlias

import grpc

from ..border import given_keys
from ..errors import ApiError, as_api_error
from ..native.generate_job import GenerateJob
from ..service import EngineService
from ..tenant import Tenant
from . import ramet_pb2 as pb
from .messages import Deltas, fields_of, response_of

logger = logging.getLogger(__name__)

SERVICE = "ramet.v1.Ramet"
Context: TypeAlias = grpc.aio.ServicerContext

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ALREADY_EXISTS,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class RametServicer:
    """One method per call. What is wrong with a call ends it with a status; see `_refuse`."""

    def __init__(self, service: EngineService) -> None:
        self._service = service
        self._tenants = service.tenants

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a server of gRPC is given."""
        unary = grpc.unary_unary_rpc_method_handler
        calls = {
            "Generate": unary(self.generate, pb.GenerateRequest.FromString, pb.GenerateResponse.SerializeToString),
            "GenerateStream": grpc.unary_stream_rpc_method_handler(
                self.generate_stream, pb.GenerateRequest.FromString, pb.GenerateChunk.SerializeToString
            ),
            "Abort": unary(self.abort, pb.AbortRequest.FromString, pb.AbortResponse.SerializeToString),
            "ModelInfo": unary(self.model_info, pb.ModelInfoRequest.FromString, pb.ModelInfoResponse.SerializeToString),
            "Health": unary(self.health, pb.HealthRequest.FromString, pb.HealthResponse.SerializeToString),
        }
        return grpc.method_handlers_generic_handler(SERVICE, calls)

    async def generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        try:
            job = GenerateJob(self._service, self._tenant(context), fields_of(request))
            async with await job.submit() as live:
                return await job.answer(live, response_of)
        except Exception as error:
            await _refuse(context, error)

    async def generate_stream(self, request: pb.GenerateRequest, context: Context) -> AsyncIterator[pb.GenerateChunk]:
        try:
            job = GenerateJob(self._service, self._tenant(context), {**fields_of(request), "stream": True})
            deltas = Deltas(job.num_samples)
            async with await job.submit() as live, aclosing(job.stream(live)) as stream:  # type: ignore[type-var]
                async for answer in stream:
                    chunk = deltas.chunk_of(answer)
                    if chunk is not None:
                        yield chunk
        except Exception as error:
            await _refuse(context, error)

    async def abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        try:
            tenant = self._tenant(context)
            if not request.rid and not request.abort_all:
                raise ApiError(400, "give the rid of a request, or abort_all", param="rid")
            num_aborted = self._service.abort(tenant.name, None if request.abort_all else request.rid)
            return pb.AbortResponse(num_aborted=num_aborted)
        except Exception as error:
            await _refuse(context, error)

    async def model_info(self, request: pb.ModelInfoRequest, context: Context) -> pb.ModelInfoResponse:
        try:
            self._tenant(context)
            llm = self._service.llm
            return pb.ModelInfoResponse(
                model_path=llm.model_name,
                served_model_name=self._service.served_model_names[0],
                max_model_len=llm.max_context_len,
                vocab_size=llm.tokenizer.vocab_size,
                chat_template=llm.tokenizer.meta.chat_template,
                version=version("ramet"),
            )
        except Exception as error:
            await _refuse(context, error)

    async def health(self, request: pb.HealthRequest, context: Context) -> pb.HealthResponse:
        is_well = self._service.engine_fault() is None
        return pb.HealthResponse(is_ready=is_well and not self._service.admission.is_draining)

    def _tenant(self, context: Context) -> Tenant:
        metadata = context.invocation_metadata() or ()
        texts = [(name, value) for name, value in metadata if isinstance(value, str)]
        return self._tenants.find(given_keys((name.encode(), value.encode("latin-1")) for name, value in texts))


async def _refuse(context: Context, error: Exception) -> NoReturn:
    """End the call with the status that says what is wrong with it."""
    request_id = f"req-{secrets.token_hex(12)}"
    failure = as_api_error(error, request_id)
    if failure.status >= 500 and not isinstance(error, ApiError):
        logger.error("request %s failed", request_id, exc_info=error)
    code = _CODES.get(failure.status, grpc.StatusCode.INTERNAL)
    await context.abort(code, failure.message, _trailing(failure, request_id))
    raise AssertionError("abort raises")


def _trailing(failure: ApiError, request_id: str) -> tuple[tuple[str, str], ...]:
    """What HTTP says in headers and in the body: in metadata, which is ASCII."""
    found = {"x-request-id": request_id, "error-code": failure.code, "error-param": failure.param}
    if failure.retry_after_s is not None:
        found |= {"retry-after": str(max(1, round(failure.retry_after_s)))}
        found |= {"grpc-retry-pushback-ms": str(round(failure.retry_after_s * 1000))}
    return tuple((name, value) for name, value in found.items() if value is not None and value.isascii())
