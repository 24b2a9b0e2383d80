"""EndpointClient: HTTP with a server of ramet or SGLang: JSON both ways, streams of events, errors in words."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from ..errors import InvalidProgramError
from .api_errors import connection_error, status_error, timeout_error
from .errors import BackendCallError

_RETRIED = (429, 503)
_MAX_WAIT_S = 60.0


class EndpointClient:
    """One server. Connections are kept.

    Args:
        timeout: seconds without a byte after which a request fails.
        max_retries: of a request that was refused for load, or found no connection.
        verify: whether to check the certificate, or the file of the authority that it is checked against.

    Raises:
        InvalidProgramError: base_url is no URL of a server.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None,
        verify: bool | str,
        timeout: float,
        max_retries: int,
        max_connections: int,
    ) -> None:
        if not isinstance(base_url, str) or not base_url.startswith(("http://", "https://")):
            raise InvalidProgramError(f"base_url={base_url!r} must be a URL such as 'http://127.0.0.1:30000'")
        self.base_url = base_url.rstrip("/")
        self._timeout = timeout
        self._max_retries = max_retries
        self._http = httpx2.AsyncClient(
            base_url=self.base_url,
            headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
            verify=ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify,
            timeout=httpx2.Timeout(timeout, connect=min(timeout, 10.0), pool=None),
            limits=httpx2.Limits(max_connections=max_connections, max_keepalive_connections=max_connections),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON of the answer.

        Raises:
            BackendCallError: there is no answer, or it is an error, with the server's message.
        """
        data = await self.send(method, path, body)
        try:
            return json.loads(data)
        except ValueError:
            raise self._unreadable(data) from None

    async def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """The content of the answer, whatever it is. Raises like `request`."""
        async with self._answer(method, path, body) as response:
            try:
                return await response.aread()
            except httpx2.HTTPError as error:
                raise self._described(error) from error

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The objects of a stream of events, up to [DONE].

        Raises:
            BackendCallError: as `request`; or the stream broke, or ended without [DONE].
        """
        async with self._answer("POST", path, body) as response:
            try:
                async for line in response.aiter_lines():
                    if not line.startswith("data:"):
                        continue
                    data = line.removeprefix("data:").strip()
                    if data == "[DONE]":
                        return
                    yield self._event(data)
            except httpx2.HTTPError as error:
                raise self._described(error) from error
        raise BackendCallError(f"{self.base_url} ended the stream before the text was complete; run the program again")

    def _event(self, data: str) -> dict[str, Any]:
        try:
            event = json.loads(data)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            raise self._unreadable(data.encode())
        if "error" in event:
            raise BackendCallError(f"{self.base_url} failed while it answered: {_message(event)}")
        return event

    @asynccontextmanager
    async def _answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> AsyncIterator[httpx2.Response]:
        """An answer of status 200, whose content is not read yet."""
        for num_tries in range(self._max_retries + 1):
            is_last = num_tries == self._max_retries
            request = self._http.build_request(method, path, json=body)
            try:
                response = await self._http.send(request, stream=True)
            except httpx2.ConnectError as error:
                if is_last:
                    raise self._described(error) from error
                await asyncio.sleep(0.5 * 2**num_tries)
                continue
            except httpx2.HTTPError as error:
                raise self._described(error) from error
            try:
                if response.status_code == 200:
                    yield response
                    return
                refusal = await self._refusal(response)
            finally:
                await response.aclose()
            if is_last or response.status_code not in _RETRIED:
                raise refusal
            wait_s = 0.5 * 2**num_tries if refusal.retry_after_s is None else refusal.retry_after_s
            await asyncio.sleep(min(wait_s, _MAX_WAIT_S))

    async def _refusal(self, response: httpx2.Response) -> BackendCallError:
        try:
            data = await response.aread()
        except httpx2.HTTPError as error:
            return self._described(error)
        try:
            message = _message(json.loads(data))
        except ValueError:
            message = data[:2000].decode("utf-8", errors="replace")
        return status_error(self.base_url, response.status_code, message, response.headers)

    def _described(self, error: httpx2.HTTPError) -> BackendCallError:
        if isinstance(error, httpx2.TimeoutException):
            return timeout_error(self.base_url, self._timeout)
        return connection_error(self.base_url, error)

    def _unreadable(self, data: bytes) -> BackendCallError:
        return BackendCallError(f"{self.base_url} sent an answer that is no JSON object: {data[:200]!r}")


def _message(payload: Any) -> str:
    """The server's own words: {"error": {"message"}}, {"error": text}, {"message"} or {"detail"}."""
    found = payload
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return found if isinstance(found, str) else json.dumps(found)
