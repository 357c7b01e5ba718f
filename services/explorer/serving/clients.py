"""Serves a stage's model to clients while it trains: their calls are kept, rewarded and trained.

    POST /sessions               {"name": "agent-7"}; its answer has the address of the session
    POST /sessions/SECRET/v1/... calls of the model
    POST /sessions/SECRET/feedback, POST /sessions/SECRET/commit
    GET  /sessions/SECRET/health, GET /sessions/SECRET/metrics

The secret is the key of a session. The buffer keeps the sessions, so any explorer may serve them.
"""

import asyncio
import logging
import sys
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Unpack

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from services.explorer.openai_api.addressed_model import AddressedModel, lent_model
from services.explorer.openai_api.bodies import BodyReader
from services.explorer.openai_api.chats import SessionChats
from services.explorer.openai_api.errors import Answer, InvalidApiRequest, json_response
from services.explorer.openai_api.handler import ROUTES, ApiCall, ReadCall
from services.explorer.openai_api.run_turns import ClientTurns, StageTurns
from services.explorer.openai_api.session import Session
from services.explorer.rollout.weight_gate import WeightGate
from services.explorer.rollout.workflow_factory import seed_from
from services.explorer.serving.pool import LendEngine
from services.explorer.serving.server import ModelServer
from services.explorer.serving.work import ServerParts
from services.explorer.types import WeightsId, WeightsRequirement, WeightsVersion
from trinity.errors import (
    Forbidden,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    QuotaExceeded,
    RpcError,
)
from trinity.types import JsonObject, StageKey
from trinity.workflows.generation import Generator

logger = logging.getLogger(__name__)

MAX_SESSIONS = 5_000
"""Sessions held in memory; the longest unused ones are read from the buffer again."""
MAX_LOADED = 256
"""Those of them whose turns are ready; the turns of the others are kept as they are stored."""
STATUS: dict[type[RpcError], tuple[int, str]] = {
    InvalidRequest: (400, "invalid_request_error"),
    Forbidden: (403, "permission_error"),
    NotFound: (404, "not_found_error"),
    PreconditionFailed: (409, "conflict_error"),
    QuotaExceeded: (429, "rate_limit_error"),
}
SUCCESS: JsonObject = {"status": "success"}
SINGLE = (
    "{} of {} groups have a single answer, and the advantage `{}` compares the answers of a group: "
    "give calls that belong together the same task_id"
)


@dataclass(slots=True, kw_only=True, eq=False)
class ClientSession:
    """A session in the memory of this explorer."""

    id: str
    turns: Session
    num_requests: int = 0
    num_open: int = 0
    """Requests that are being answered."""
    num_ready: int = 0
    """Answers with a reward that are not committed, as far as known."""
    explore_step: int = 0
    """The newest explore step that it was committed as."""


@dataclass(slots=True, kw_only=True)
class ClientSessions:
    """The sessions of a stage's clients that this explorer holds, by their secrets."""

    key: StageKey
    seed: int
    stage: StageTurns
    _held: OrderedDict[str, ClientSession] = field(default_factory=OrderedDict)
    _loaded: OrderedDict[ClientSession, None] = field(default_factory=OrderedDict)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def open_named(self, name: str) -> str:
        """Returns the secret of a session by its name; makes one if there is none."""
        async with self._opening:
            token = str(uuid.uuid4())
            opened = await self.stage.buffer.open_session(self.key, token, name=name)
            self._hold(opened.secret, opened.session_id, token)
        return opened.secret

    @asynccontextmanager
    async def use(self, secret: str) -> AsyncIterator[ClientSession]:
        """Yields a session for one request. Raises: NotFound for an unknown secret."""
        held = self._held.get(secret) or await self._taken(secret)
        self._held.move_to_end(secret)
        held.num_open += 1
        held.num_requests += 1
        try:
            try:
                await held.turns.load()
            except BaseException:
                self._lose(secret, held)
                raise
            yield held
        finally:
            held.num_open -= 1
            self._unload_unused(held)

    def _unload_unused(self, used: ClientSession) -> None:
        self._loaded[used] = None
        self._loaded.move_to_end(used)
        if len(self._loaded) > MAX_LOADED:
            oldest, _ = self._loaded.popitem(last=False)
            if not oldest.num_open:  # else it comes again
                oldest.turns.unload()

    async def _taken(self, secret: str) -> ClientSession:
        """Takes a session over; requests that come meanwhile find it."""
        async with self._opening:
            if (held := self._held.get(secret)) is not None:
                return held
            token = str(uuid.uuid4())
            opened = await self.stage.buffer.open_session(self.key, token, secret=secret)
            return self._hold(secret, opened.session_id, token)

    def _hold(self, secret: str, own_id: str, token: str) -> ClientSession:
        turns = ClientTurns(
            stage=self.stage,
            key=self.key,
            session_id=own_id,
            token=token,
            on_loss=lambda: self._lose(secret, held),
        )
        seeds = partial(seed_from, self.seed, own_id)
        session = Session(session_id=own_id, store=turns, seed_of_turn=seeds)
        held = ClientSession(id=own_id, turns=session)
        self._held[secret] = held
        for other in self._unused(len(self._held) - MAX_SESSIONS):
            del self._held[other]
        return held

    def _unused(self, count: int) -> list[str]:
        unused = (secret for secret, own in self._held.items() if not own.num_open)
        return [secret for secret, _ in zip(unused, range(count), strict=False)]

    def _lose(self, secret: str, held: ClientSession) -> None:
        if self._held.get(secret) is held:
            del self._held[secret]


def lender(
    gate: WeightGate, generator: Generator, published: Callable[[], tuple[WeightsVersion, ...]]
) -> LendEngine:
    """Lends an engine with the newest weights, as runs have it."""

    @asynccontextmanager
    async def lend() -> AsyncIterator[tuple[Generator, WeightsId]]:
        ids = [(weights.id.incarnation, weights.id.version) for weights in published()]
        incarnation, version = max(ids, default=(0, 0))
        newest = WeightsRequirement(version=version, incarnation=incarnation, exact_version=False)
        async with gate.hold(newest) as weights:
            yield generator, weights

    return lend


async def _outside(request: Request, _: Send) -> Response:
    raise InvalidApiRequest(
        f"{request.url.path} is that of a session: open one with `POST /sessions` and a `name`, "
        "and give its `proxy_url` to the client",
        status=404,
        kind="not_found_error",
    )


AnswerOfSession = Callable[[Request, ClientSession], Awaitable[JsonObject]]


class ClientServer(ModelServer):
    """A served model with sessions; calls outside of them are answered and not kept."""

    def __init__(
        self,
        *,
        sessions: ClientSessions,
        compares: str,
        is_ready: Callable[[], bool],
        **parts: Unpack[ServerParts],
    ) -> None:
        super().__init__(is_ready=is_ready, **parts)
        self._sessions = sessions
        self._compares = compares
        """The advantage, if it compares the answers of a group."""
        self._bodies = BodyReader()

    def _routes(self) -> dict[str, Answer]:
        own = "/sessions/{secret}"
        routes = super()._routes() | {
            "POST /sessions": self._allowed(self._open),
            f"GET {own}/health": self._of_session(self._session_health),
            f"GET {own}/metrics": self._of_session(self._metrics),
            f"POST {own}/feedback": self._of_session(self._feedback),
            f"POST {own}/commit": self._of_session(self._commit),
            f"GET {own}/v1/models": self._list_models,
            f"GET {own}/v1/models/{{name:path}}": self._show_model,
        }
        routes |= dict.fromkeys(("POST /feedback", "POST /commit", "GET /metrics"), _outside)
        for path, read in ROUTES.items():
            routes[f"POST {own}{path}"] = partial(self._answer_call, read)
        return routes

    async def _open(self, request: Request, _: Send) -> Response:
        body = await self._bodies.read_json(request)
        name = body.get("name") if isinstance(body, dict) else None
        if not isinstance(name, str) or not name:
            raise InvalidApiRequest("give the session a `name`, a text", param="name")
        with _rpc_errors():
            secret = await self._sessions.open_named(name)
        address = self.address.removesuffix("/v1")
        return json_response(SUCCESS | {"proxy_url": f"{address}/sessions/{secret}"})

    async def _answer_call(self, read: ReadCall, request: Request, send: Send) -> Response | None:
        async with self._session(request) as session:
            chats = SessionChats(session.turns.tree)

            @asynccontextmanager
            async def lend(call: ApiCall) -> AsyncIterator[AddressedModel]:
                async with (
                    self._borrow(call) as model,
                    lent_model(model, session.turns, call) as addressed,
                ):
                    yield addressed

            return await self._handler.answer(
                lambda body, writer: read(body, replace(writer, kept=chats)), lend, request, send
            )

    @asynccontextmanager
    async def _session(self, request: Request) -> AsyncIterator[ClientSession]:
        with _rpc_errors():
            async with self._sessions.use(request.path_params["secret"]) as session:
                yield session

    def _of_session(self, answer: AnswerOfSession) -> Answer:
        async def answered(request: Request, _: Send) -> Response:
            async with self._session(request) as session:
                return json_response(await answer(request, session))

        return answered

    async def _session_health(self, _: Request, __: ClientSession) -> JsonObject:
        return {"status": "ready"}

    async def _metrics(self, _: Request, session: ClientSession) -> JsonObject:
        return {
            "rollout/model_0/total_request_count": session.num_requests,
            "rollout/total_experience_count": len(session.turns.tree.turns),
            "rollout/ready_experience_count": session.num_ready,
            "explore_step_num": session.explore_step,
        }

    async def _feedback(self, request: Request, session: ClientSession) -> JsonObject:
        body = await self._bodies.read_json(request)
        if not isinstance(body, dict):
            raise InvalidApiRequest("give an object with `reward`, `msg_ids` and `task_id`")
        reward, names, task = body.get("reward"), body.get("msg_ids"), body.get("task_id")
        if isinstance(reward, bool) or not isinstance(reward, int | float):
            raise InvalidApiRequest("`reward` is no number", param="reward")
        if abs(reward) > sys.float_info.max:
            raise InvalidApiRequest("`reward` is too large", param="reward")
        if not isinstance(names, list) or not names:
            raise InvalidApiRequest("`msg_ids` is no list of ids of answers", param="msg_ids")
        buffer, key = self._sessions.stage.buffer, self._sessions.key
        session.num_ready = await buffer.reward_calls(
            key, session.id, [_call_id(name) for name in names], float(reward), str(task or "")
        )
        return SUCCESS

    async def _commit(self, _: Request, session: ClientSession) -> JsonObject:
        sessions = self._sessions
        done = await sessions.stage.buffer.commit_session(sessions.key, session.id)
        session.num_ready = 0
        session.explore_step = done.explore_step or session.explore_step
        told = SUCCESS | {
            "explore_step": done.explore_step,
            "groups": done.num_groups,
            "calls": done.num_calls,
        }
        if done.num_single and self._compares:
            told["warning"] = SINGLE.format(done.num_single, done.num_groups, self._compares)
            logger.warning("groups of a single answer", extra={"groups": done.num_single})
        return told


def _call_id(name: object) -> str:
    """Returns the turn of an answer's name: `chatcmpl-`, `resp_`, `msg_` and its digits."""
    try:
        return str(uuid.UUID(str(name)[-32:]))
    except ValueError as error:
        raise InvalidApiRequest(
            f"`msg_ids` has {str(name)[:60]!r}, which is the `id` of no answer",
            param="msg_ids",
            status=404,
            kind="not_found_error",
        ) from error


@contextmanager
def _rpc_errors() -> Iterator[None]:
    """Raises refusals of the buffer as those of the API; outages may be tried again."""
    try:
        yield
    except RpcError as error:
        kinds = (told for kind, told in STATUS.items() if isinstance(error, kind))
        status, name = next(kinds, (503, "server_error"))
        raise InvalidApiRequest(str(error), status=status, kind=name) from error
