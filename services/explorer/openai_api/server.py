"""Serves completions on loopback, with a separate address for the session of each run."""

import hmac
import logging
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary, WeakValueDictionary

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from services.explorer.openai_api.addressed_model import lent_model
from services.explorer.openai_api.chat import ResponseWriter
from services.explorer.openai_api.chats import SessionChats
from services.explorer.openai_api.errors import (
    INVALID,
    Answer,
    error_response,
    json_response,
    new_application,
    not_http,
)
from services.explorer.openai_api.handler import (
    ROUTES,
    ApiHandler,
    ReadCall,
    model_list,
    named_model,
)
from services.explorer.openai_api.images import RequestImages
from services.explorer.openai_api.schemas import SchemaChecker
from services.explorer.openai_api.session import Session
from services.explorer.openai_api.tools import ResponseParsers
from trinity.config.schema.explorer import EngineConfig
from trinity.errors import UserError
from trinity.runtime.http.connections import ConnectionTable, HttpLimits
from trinity.runtime.http.listener import open_port
from trinity.runtime.http.server import HttpServer, bearer_token
from trinity.runtime.json_values import JsonValue
from trinity.workflows.generation import ChatTokenizer
from trinity.workflows.model import ModelWrapper
from trinity.workflows.model_access import ApiAccess

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 16


class AttemptApiServer:
    """Serves calls under a run's address by the model of an attempt, with its weights and limits.

    Access is limited: the address holds a secret of the session, requests carry the key, and the
    server listens on this machine only. A session that no attempt has gets 404.

        await api.start_api()
        model.enable_api(api.register_attempt(model))
    """

    def __init__(
        self,
        *,
        model_path: str,
        rollout: EngineConfig,
        tokenizer: ChatTokenizer,
        parsers: ResponseParsers | None = None,
        template_kwargs: Mapping[str, JsonValue] | None = None,
        schemas: SchemaChecker | None = None,
        connections: ConnectionTable | None = None,
    ) -> None:
        self._model_path = model_path
        self._handler = ApiHandler(
            writer=ResponseWriter(
                model_path=model_path,
                tokenizer=tokenizer,
                parsers=parsers,
                template_kwargs=template_kwargs or {},
            ),
            schemas=schemas,
            images=RequestImages(rollout.allowed_media_domains),
        )
        self._rollout = rollout
        self._key = rollout.api_key if rollout.has_own_key else secrets.token_urlsafe(TOKEN_BYTES)
        self._models: WeakValueDictionary[str, ModelWrapper] = WeakValueDictionary()
        self._sessions: WeakKeyDictionary[ModelWrapper, Session] = WeakKeyDictionary()
        self._connections = connections or ConnectionTable(HttpLimits.from_open_files())
        self._server: HttpServer | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return self._port

    async def start_api(self) -> None:
        """Starts to listen, on any free port if `base_port` is taken."""
        attempt = "/sessions/{secret}"
        routes: dict[str, Answer] = {
            "GET /health": self._health,
            "GET /v1/models": self._list_models,
            f"GET {attempt}/v1/models": self._list_models,
            f"GET {attempt}/v1/models/{{name:path}}": self._show_model,
        }
        for path, read in ROUTES.items():
            routes[f"POST {attempt}{path}"] = partial(self._answer, read)
        listening = _listen(self._rollout.base_port)
        self._port = listening.getsockname()[1]
        self._server = HttpServer(new_application(routes), table=self._connections, refuse=not_http)
        await self._server.start(listening)
        logger.info("the OpenAI-compatible address is open", extra={"port": self._port})

    async def stop_api(self) -> None:
        """Stops the server."""
        if self._server is not None:
            await self._server.stop()

    def register_attempt(
        self, model: ModelWrapper, session: Session | None = None, *, secret: str = ""
    ) -> ApiAccess:
        """Returns the address of a session, valid for as long as the attempt's model exists.

        Without a session and a secret, turns are kept in memory under a random address.
        """
        secret = secret or secrets.token_hex(TOKEN_BYTES)
        self._models[secret] = model
        self._sessions[model] = session or Session()
        return ApiAccess(
            address=f"http://{LOOPBACK}:{self._port}/sessions/{secret}/v1",
            key=self._key,
            model_path=self._model_path,
        )

    async def _health(self, _: Request, __: Send) -> Response:
        return json_response({})

    async def _list_models(self, request: Request, _: Send) -> Response:
        if not self._has_key(request):
            return _no_key()
        return json_response(model_list(self._model_path))

    async def _show_model(self, request: Request, _: Send) -> Response:
        return named_model(request, self._model_path) if self._has_key(request) else _no_key()

    async def _answer(self, read: ReadCall, request: Request, send: Send) -> Response | None:
        begun = time.monotonic()
        if not self._has_key(request):
            return _no_key()
        model = self._models.get(request.path_params["secret"])
        if model is None:
            return _no_session()
        session = self._sessions[model]
        await session.load()
        lend, chats = partial(lent_model, model, session), SessionChats(session.tree)
        response = await self._handler.answer(
            lambda body, writer: read(body, replace(writer, kept=chats)), lend, request, send
        )
        if self._rollout.enable_log_requests:
            status = 200 if response is None else response.status_code
            about = {"status": status, "seconds": round(time.monotonic() - begun, 3)}
            logger.info("a request to the OpenAI-compatible address", extra=about)
        return response

    def _has_key(self, request: Request) -> bool:
        return hmac.compare_digest(bearer_token(request).encode(), self._key.encode())


def _listen(port: int | None) -> socket.socket:
    for wanted in (port or 0, 0):
        try:
            return open_port(LOOPBACK, wanted)
        except OSError as error:
            logger.warning("a port is taken", extra={"port": wanted, "why": str(error)})
    raise UserError(f"no port of {LOOPBACK} is free for the OpenAI-compatible address")


def _no_session() -> Response:
    return error_response(
        404,
        INVALID,
        "there is no such session, or its run is over: ask at the address that the run was given",
    )


def _no_key() -> Response:
    return error_response(
        401,
        "authentication_error",
        "send the `api_key` of the model as a bearer token or `x-api-key`",
    )
