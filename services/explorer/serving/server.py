"""The HTTP server of a served model."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from services.explorer.openai_api.errors import (
    Answer,
    InvalidApiRequest,
    json_response,
    new_application,
    not_http,
)
from services.explorer.openai_api.handler import (
    ROUTES,
    ApiCall,
    ApiHandler,
    model_list,
    named_model,
)
from services.explorer.serving.access import ServingAccessPolicy
from services.explorer.serving.pool import ModelBorrower
from trinity.errors import UserError
from trinity.runtime.host_port import join_address
from trinity.runtime.http.connections import ConnectionTable
from trinity.runtime.http.listener import open_port
from trinity.runtime.http.server import HttpServer
from trinity.workflows.model import ModelWrapper

logger = logging.getLogger(__name__)

MAX_REQUESTS = 1024
"""Limit of concurrent requests, where the connections allow that many; others get 429."""


class ModelServer:
    """Answers until it is closed, which first drains the requests in progress.

    async with server.open(drain_seconds):
        ...
    """

    def __init__(
        self,
        *,
        access: ServingAccessPolicy,
        port: int,
        is_ready: Callable[[], bool],
        borrower: ModelBorrower,
        handler: ApiHandler,
        names: tuple[str, ...],
        table: ConnectionTable,
    ) -> None:
        self._access = access
        self._port = port
        self._is_ready = is_ready
        self._borrower = borrower
        self._handler = handler
        self._names = names
        self._table = table
        # The others are for clients that are about to ask, which learn that there are too many.
        self._max_requests = max(1, min(MAX_REQUESTS, table.limits.max_connections * 3 // 4))
        self._num_requests = 0
        self._ended = asyncio.Event()
        self._stopping = False

    @property
    def address(self) -> str:
        """The base URL for clients, up to /v1."""
        scheme = "http" if self._access.tls is None else "https"
        return f"{scheme}://{join_address(self._access.host, self._port)}/v1"

    @asynccontextmanager
    async def open(self, drain_seconds: float) -> AsyncIterator[None]:
        """Listens until the block ends.

        Raises: UserError when the address is taken, or open to others without tokens.
        """
        self._access.check_host()
        tls = self._access.tls
        listening = _listen(self._access.host, self._port)
        self._port = listening.getsockname()[1]
        server = HttpServer(new_application(self._routes()), table=self._table, refuse=not_http)
        await server.start(listening, tls)
        try:
            logger.info("the model is served", extra={"address": self.address})
            yield
        finally:
            await self._drain(drain_seconds)
            await server.stop()

    def _routes(self) -> dict[str, Answer]:
        routes: dict[str, Answer] = {
            "GET /health": self._health,
            "GET /v1/models": self._allowed(self._list_models),
            "GET /v1/models/{name:path}": self._allowed(self._show_model),
        }
        for path, read in ROUTES.items():
            answer = partial(self._handler.answer, read, self._borrow)
            routes[f"POST {path}"] = self._allowed(answer)
        return routes

    async def _drain(self, seconds: float) -> None:
        """Refuses new requests and waits for those in progress."""
        self._stopping = True
        try:
            async with asyncio.timeout(seconds):
                while self._num_requests:
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            logger.warning("requests were cut short", extra={"requests": self._num_requests})

    async def _health(self, _: Request, __: Send) -> Response:
        """Reports only readiness: load balancers have no token."""
        ready = not self._stopping and self._is_ready()
        return json_response({"status": "ready" if ready else "not ready"}, 200 if ready else 503)

    async def _list_models(self, _: Request, __: Send) -> Response:
        return json_response(model_list(*self._names))

    async def _show_model(self, request: Request, _: Send) -> Response:
        return named_model(request, *self._names)

    def _allowed(self, answer: Answer) -> Answer:
        async def allowed(request: Request, send: Send) -> Response | None:
            refusal = self._access.refusal(request)
            return await answer(request, send) if refusal is None else refusal

        return allowed

    @asynccontextmanager
    async def _borrow(self, call: ApiCall) -> AsyncIterator[ModelWrapper]:
        """Yields the model for a request that has arrived, and counts it.

        Raises: InvalidApiRequest when there are too many, or the server is being stopped.
        """
        if self._stopping:
            raise InvalidApiRequest(
                "the server is being stopped",
                kind="server_error",
                status=HTTPStatus.SERVICE_UNAVAILABLE,
            )
        if self._num_requests >= self._max_requests:
            raise InvalidApiRequest(
                f"{self._max_requests} requests are being answered: try again in a moment",
                kind="rate_limit_error",
                code="rate_limit_exceeded",
                status=HTTPStatus.TOO_MANY_REQUESTS,
            )
        self._num_requests += 1
        try:
            async with self._borrower(call) as model:
                yield model
        finally:
            self._num_requests -= 1
            self._ended.set()


def _listen(host: str, port: int) -> socket.socket:
    try:
        return open_port(host, port)
    except OSError as error:
        raise UserError(
            f"cannot serve at {join_address(host, port)} (`explorer.listen_address`, "
            f"`explorer.proxy_port`): {error.strerror or error}; choose another port"
        ) from error
