"""The address that Prometheus scrapes: `/metrics` answers with the figures of that moment.

    async with serve_metrics("127.0.0.1:9464", Credentials.from_environment()) as address: ...

The figures are those of the process, of all its tenants, so a token has to be for all of them.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from trinity.errors import Unauthenticated, UserError
from trinity.runtime.host_port import join_address, split_address
from trinity.runtime.http.connections import ConnectionTable, HttpLimits
from trinity.runtime.http.listener import open_port
from trinity.runtime.http.server import HttpServer, bearer_token
from trinity.runtime.http.tls import renewing_context
from trinity.runtime.rpc import audit
from trinity.runtime.security.authorization import Caller, Scope
from trinity.runtime.security.credentials import CERTIFICATE, KEY, VARIABLE, Credentials
from trinity.runtime.security.loopback import is_loopback
from trinity.runtime.security.tokens import TokenKeys

logger = logging.getLogger(__name__)
PATH = "/metrics"
LIMITS = HttpLimits(max_connections=32)
REGISTRY = CollectorRegistry()


def new_reader() -> PrometheusMetricReader:
    """Returns a reader of which the address answers; resource and scope are in no label."""
    return PrometheusMetricReader(
        disable_target_info=True, scope_info_enabled=False, registry=REGISTRY
    )


@contextlib.asynccontextmanager
async def serve_metrics(address: str, security: Credentials) -> AsyncIterator[str]:
    """Serves while the block runs; yields the address with the port that is bound.

    Raises: UserError when the address is in use, or is not loopback and there is no security.
    """
    host, port = split_address(address)
    if not security.is_on and not is_loopback(host):
        raise UserError(
            f"refusing to serve metrics on {address}: only loopback addresses are allowed without "
            f"TLS and tokens; use 127.0.0.1, or set {VARIABLE} to a folder that `trinity certs` "
            "has made"
        )
    endpoint = _Endpoint(security.token_keys() if security.is_on else None)
    files = (security.file(CERTIFICATE), security.file(KEY)) if security.is_on else None
    try:
        listening = open_port(host, port)
    except OSError as error:
        raise UserError(
            f"cannot serve metrics on {address}: {error.strerror}; choose another port"
        ) from error
    bound = join_address(host, listening.getsockname()[1])
    app = Starlette(routes=[Route(PATH, endpoint.answer)])
    server = HttpServer(app, table=ConnectionTable(LIMITS))
    await server.start(listening, renewing_context(*files) if files else None)
    logger.info("serving metrics", extra={"address": bound})
    try:
        yield bound
    finally:
        await server.stop()


class _Endpoint:
    """Answers with the registry's figures; without keys to any caller, as on loopback."""

    def __init__(self, keys: TokenKeys | None) -> None:
        self._keys = keys
        self._lock = asyncio.Lock()
        """The exporter's collector does not take two scrapes at a time."""

    async def answer(self, request: Request) -> Response:
        """Answers a scrape."""
        if self._keys is not None and (refusal := _refusal(self._keys, request)):
            return refusal
        async with self._lock:
            text = await asyncio.to_thread(generate_latest, REGISTRY)
        return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _refusal(keys: TokenKeys, request: Request) -> Response | None:
    caller: Caller | None = None
    try:
        caller = keys.caller_of(bearer_token(request))
    except Unauthenticated as error:
        why, status = str(error), 401
    else:
        if Scope.READ in caller.scopes and not caller.is_bound:
            return None
        why, status = "metrics take a token for all tenants with the scope `read`", 403
    peer = request.client.host if request.client else ""
    audit.log_refusal(why, method=PATH, peer=peer, caller=caller)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return PlainTextResponse(f"{why}\n", status, headers)
