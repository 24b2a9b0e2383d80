"""The calls of ramet.proto over the same engine, tenants and limits as HTTP has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from importlib.metadata import version
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from ..border import given_keys, new_request_id
from ..errors import ApiError, reported
from ..json_route import SMALL_BODY_BYTES
from ..native.generate_job import GenerateJob
from ..service import EngineService
from ..tenant import Tenant
from . import ramet_pb2 as pb
from .messages import Deltas, fields_of, response_of

SERVICE = "ramet.v1.Ramet"
M = TypeVar("M", bound=Message)
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
        """What a server of gRPC is given. Messages come as bytes: what is none is refused as other things are."""
        unary = grpc.unary_unary_rpc_method_handler
        calls = {
            "Generate": unary(self.generate, None, None),
            "GenerateStream": grpc.unary_stream_rpc_method_handler(
                self.generate_stream, None, pb.GenerateChunk.SerializeToString
            ),
            "Abort": unary(self.abort, None, pb.AbortResponse.SerializeToString),
            "ModelInfo": unary(self.model_info, None, pb.ModelInfoResponse.SerializeToString),
            "Health": unary(self.health, None, pb.HealthResponse.SerializeToString),
        }
        return grpc.method_handlers_generic_handler(SERVICE, calls)

    async def generate(self, message: bytes, context: Context) -> bytes:
        async with self._call(context, message) as request_id:
            tenant = self._tenant(context)
            job = GenerateJob(self._service, tenant, await self._fields(tenant, message), request_id)
            async with await job.submit() as live:
                return await job.answer(live, lambda answer: response_of(answer).SerializeToString())

    async def generate_stream(self, message: bytes, context: Context) -> AsyncIterator[pb.GenerateChunk]:
        async with self._call(context, message) as request_id:
            tenant = self._tenant(context)
            fields = {**await self._fields(tenant, message), "stream": True}
            job = GenerateJob(self._service, tenant, fields, request_id)
            deltas = Deltas(job.num_samples)
            async with await job.submit() as live, aclosing(job.stream(live)) as stream:  # type: ignore[type-var]
                async for answer in stream:
                    chunk = deltas.chunk_of(answer)
                    if chunk is not None:
                        yield chunk

    async def abort(self, message: bytes, context: Context) -> pb.AbortResponse:
        async with self._call(context, message):
            tenant = self._tenant(context)
            request = _parsed(pb.AbortRequest, message)
            if not request.rid and not request.abort_all:
                raise ApiError(400, "give the rid of a request, or abort_all", param="rid")
            num_aborted = self._service.abort(tenant.name, None if request.abort_all else request.rid)
            return pb.AbortResponse(num_aborted=num_aborted)

    async def model_info(self, message: bytes, context: Context) -> pb.ModelInfoResponse:
        async with self._call(context, message):
            self._tenant(context)
            _parsed(pb.ModelInfoRequest, message)
            llm = self._service.llm
            return pb.ModelInfoResponse(
                model_path=llm.model_name,
                served_model_name=self._service.served_model_names[0],
                max_model_len=llm.max_context_len,
                vocab_size=llm.tokenizer.vocab_size,
                chat_template=llm.tokenizer.meta.chat_template,
                version=version("ramet"),
            )

    async def health(self, message: bytes, context: Context) -> pb.HealthResponse:
        async with self._call(context, message):
            _parsed(pb.HealthRequest, message)
        is_well = self._service.engine_fault() is None
        return pb.HealthResponse(is_ready=is_well and not self._service.admission.is_draining)

    @asynccontextmanager
    async def _call(self, context: Context, message: bytes) -> AsyncIterator[str]:
        """Around a call, whose message counts as the body of a request of HTTP does. What fails inside ends it with a
        status; see `_refuse`. Gives an id for it."""
        request_id = new_request_id()
        body = self._service.bodies.open()
        try:
            try:
                body.add(len(message))
                yield request_id
            finally:
                body.free()
        except Exception as error:
            await _refuse(context, error, request_id)

    async def _fields(self, tenant: Tenant, message: bytes) -> dict[str, Any]:
        """What is asked. A worker reads a large message."""

        def read() -> dict[str, Any]:
            return fields_of(_parsed(pb.GenerateRequest, message))

        return read() if len(message) <= SMALL_BODY_BYTES else await self._service.workers.read(tenant.name, read)

    def _tenant(self, context: Context) -> Tenant:
        metadata = context.invocation_metadata() or ()
        texts = [(name, value) for name, value in metadata if isinstance(value, str)]
        return self._tenants.find(given_keys((name.encode(), value.encode("latin-1")) for name, value in texts))


def _parsed(kind: type[M], message: bytes) -> M:
    """
    Raises:
        ApiError: it is none of these.
    """
    parsed: M = kind()
    try:
        parsed.ParseFromString(message)
    except DecodeError:
        raise ApiError(400, f"the message is no {kind.DESCRIPTOR.full_name} of ramet.proto") from None
    return parsed


async def _refuse(context: Context, error: Exception, request_id: str) -> NoReturn:
    """End the call with the status that says what is wrong with it."""
    failure = reported(error, request_id)
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
