"""GrpcServer: gRPC beside HTTP, on the same event loop."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

import grpc

from ...errors import InvalidConfigError
from ..service import EngineService
from .servicer import RametServicer


@dataclass(frozen=True, slots=True)
class GrpcServer:
    """One that takes calls.

    Attributes:
        port: where it listens.
    """

    port: int
    server: grpc.aio.Server

    async def stop(self, grace_s: float | None) -> None:
        """Take no more calls, and cancel those that have not ended within the time."""
        await self.server.stop(grace_s)


async def start_grpc(service: EngineService) -> GrpcServer:
    """Listen on the configuration's host and grpc_port, until it is stopped on the same loop.

    Raises:
        InvalidConfigError: the port is taken, or is none of this machine's.
    """
    config = service.config
    assert config.grpc_port is not None
    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", config.max_body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", config.max_header_bytes),
            ("grpc.absolute_max_metadata_size", config.max_header_bytes),
            ("grpc.so_reuseport", 0),
        ),
        maximum_concurrent_rpcs=config.max_connections,
    )
    server.add_generic_rpc_handlers((RametServicer(service).handlers(),))
    try:
        port = server.add_insecure_port(f"{_in_brackets(config.host)}:{config.grpc_port}")
    except RuntimeError as error:
        raise InvalidConfigError(f"gRPC cannot listen on {config.host}:{config.grpc_port}: {error}") from error
    await server.start()
    return GrpcServer(port, server)


def _in_brackets(host: str) -> str:
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        return host
