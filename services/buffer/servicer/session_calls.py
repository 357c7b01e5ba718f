"""RPC methods for sessions: their turns, and the rewards and commits of clients."""

import math
from collections.abc import AsyncIterator

from services.buffer.operations.client_sessions import (
    commit_session,
    open_session,
    reward_session,
)
from services.buffer.servicer.common import BufferServicerBase, Context, by_size
from services.buffer.servicer.convert import (
    fields_of,
    parse_lease_tokens,
    parse_name,
    parse_stage_key,
    parse_text,
    parse_uuid,
    parse_uuids,
)
from services.buffer.servicer.samples import turn_to_proto
from services.buffer.store.client_sessions import token_of, turns_of_client
from services.buffer.store.stages import lock_stage
from services.buffer.store.turns import StoredTurn, holds_lease, read_bodies, turns_of
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1.experience_pb2 import SessionTurn
from trinity.errors import InvalidRequest, PreconditionFailed
from trinity.runtime.sql import Connection
from trinity.types import StageKey


class SessionRpcs(BufferServicerBase):
    """GetTurns, OpenSession, RewardCalls, CommitSession."""

    async def GetTurns(
        self, request: pb.GetTurnsRequest, _: Context
    ) -> AsyncIterator[pb.GetTurnsResponse]:
        """Streams the turns of a session, in the order in which they were stored."""
        key = parse_stage_key(request.key)
        async with self.database.transaction() as connection:
            await lock_stage(connection, key, is_shared=True)
            stored = await _turns(connection, key, request)
        # A run needs all of its turns, and a client's session goes on without the removed ones.
        may_lack = request.lease.assignment_id == request.session_id
        async for parts in read_bodies(self.database, key, stored):
            turns = [
                turn_to_proto(own, (body or b"") if may_lack else _kept(own, body))
                for own, body in parts
            ]
            for part in by_size(turns, SessionTurn.ByteSize):
                yield pb.GetTurnsResponse(turns=part)

    async def OpenSession(
        self, request: pb.OpenSessionRequest, _: Context
    ) -> pb.OpenSessionResponse:
        """Gives a client's session to an explorer."""
        key, token = parse_stage_key(request.key), parse_uuid(request.token, "token")
        if bool(request.name) == bool(request.secret):
            raise InvalidRequest("give a session's name or its secret, one of the two")
        name = parse_name(request.name, "name") if request.name else ""
        async with self.database.transaction() as connection:
            opened = await open_session(
                connection, key, name=name, secret=request.secret, token=token
            )
            if opened.is_new:
                await self.quotas.check_new_session(connection, key.tenant)
        return pb.OpenSessionResponse(**fields_of(pb.OpenSessionResponse, opened))

    async def RewardCalls(
        self, request: pb.RewardCallsRequest, _: Context
    ) -> pb.RewardCallsResponse:
        """Gives calls of a client their reward."""
        key, own_id = parse_stage_key(request.key), parse_uuid(request.session_id, "session_id")
        if not math.isfinite(request.reward):
            raise InvalidRequest(f"the reward {request.reward} is no finite number")
        ids = parse_uuids(list(request.call_ids), "call_ids")
        task = parse_text(request.task, "task")
        async with self.database.transaction() as connection:
            num_ready = await reward_session(
                connection, key, own_id, ids, reward=request.reward, task=task
            )
        return pb.RewardCallsResponse(num_ready=num_ready)

    async def CommitSession(
        self, request: pb.CommitSessionRequest, _: Context
    ) -> pb.CommitSessionResponse:
        """Makes an explore step of a session's rewarded calls."""
        key, own_id = parse_stage_key(request.key), parse_uuid(request.session_id, "session_id")
        async with self.database.transaction() as connection:
            committed = await commit_session(connection, key, own_id)
        return pb.CommitSessionResponse(**fields_of(pb.CommitSessionResponse, committed))


async def _turns(
    connection: Connection, key: StageKey, request: pb.GetTurnsRequest
) -> list[StoredTurn]:
    """Returns the turns that a request may see; raises PreconditionFailed for any other."""
    [(own_id, token)] = parse_lease_tokens([request.lease]).items()
    session = parse_uuid(request.session_id, "session_id") if request.session_id else ""
    is_held = await holds_lease(connection, key, own_id, token)
    if session == own_id:
        is_held = await token_of(connection, key, own_id) == token
    if not is_held:
        raise PreconditionFailed(f"assignment {own_id} is not leased under this token")
    if not session:
        return await turns_of(connection, key, [(own_id, request.run)])
    wanted = parse_uuids(list(request.turn_ids), "turn_ids")
    return await turns_of_client(connection, key, session, wanted)


def _kept(stored: StoredTurn, body: bytes | None) -> bytes:
    if body is None:
        raise PreconditionFailed(
            f"the content of turn {stored.turn_id} was deleted, so its run cannot go on from it"
        )
    return body
