"""The turns of a stage's runs and clients: sent with the results, and read where one goes on."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from services.explorer.clients.buffer import ExplorerBufferClient, lease_of
from services.explorer.delivery.outbox import Outbox
from services.explorer.types import Attempt, CommitOutcome, ResultReport
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1.experience_pb2 import SessionTurn
from trinity.data.images import images_of
from trinity.errors import Unavailable
from trinity.runtime.retry import Retry
from trinity.runtime.session_ids import session_id, session_secret
from trinity.types import Experience, StageKey
from trinity.workflows.answers import TurnNode
from trinity.workflows.turn_codec import decode_turn, encode_payload

LOAD_SECONDS = 30.0
Report = asyncio.Future[ResultReport]


@dataclass(slots=True, kw_only=True)
class StageTurns:
    """Opens the stores of runs, and knows which turns of each are on their way."""

    buffer: ExplorerBufferClient
    outbox: Outbox
    _sent: dict[str, set[Report]] = field(default_factory=dict)
    """Turns without a report, by session."""

    def store_of(self, attempt: Attempt) -> "RunTurns | None":
        """Returns the store of a run; None if the buffer keeps no turns."""
        if not attempt.assignment.session_key:
            return None
        own_id = session_id(attempt.assignment.id, attempt.run)
        return RunTurns(self, attempt, own_id)

    def send(self, own_id: str, message: SessionTurn) -> Report:
        """Sends a turn of a session."""
        report = self.outbox.enqueue_turn(message)
        self._sent.setdefault(own_id, set()).add(report)
        report.add_done_callback(lambda _: self._forget(own_id, report))
        return report

    async def committed_answers(self, attempt: Attempt) -> list[Experience]:
        """Returns the answers that a client has committed as a run, with their reward.

        Raises: RpcError.
        """
        lease = lease_of(attempt.assignment)
        task: Any = attempt.assignment.new_task()  # the buffer has made it
        session, call = task["session"], task["calls"][attempt.run]
        wanted: list[str] = call["turns"]
        retry = Retry(seconds=LOAD_SECONDS, timeout_error=Unavailable)
        messages = await retry.call_async(
            lambda: self.buffer.get_client_turns(attempt.key, session, lease=lease, wanted=wanted)
        )
        turns: dict[str, TurnNode] = {}
        for message in messages:
            parent = turns[message.parent_id] if message.parent_id else None
            turns[message.id] = decode_turn(message, parent)
        answers = [turns[turn_id].answer for turn_id in wanted]
        for answer in answers:
            answer.origin = answer.copied()
            answer.reward = float(call["reward"])
        return answers

    async def wait_for_reports(self, own_id: str) -> None:
        """Waits until all turns of a session are reported on."""
        while sent := self._sent.get(own_id):
            await asyncio.wait(sent)

    def _forget(self, own_id: str, report: Report) -> None:
        self._sent[own_id].discard(report)
        if not self._sent[own_id]:
            del self._sent[own_id]


@dataclass(slots=True, kw_only=True)
class ClientTurns:
    """The store of a client's session, under the token of this explorer."""

    stage: StageTurns
    key: StageKey
    session_id: str
    token: str
    on_loss: Callable[[], None]
    """Called when another explorer holds the session."""
    _stored: list[SessionTurn] | None = None
    """The stored turns, compressed; None until they are read. Nobody else adds to them."""

    async def load(self) -> list[SessionTurn]:
        """Returns the stored turns. Raises: RpcError."""
        await self.stage.wait_for_reports(self.session_id)
        if self._stored is None:
            lease = pb.Lease(assignment_id=self.session_id, lease_token=self.token)
            buffer = self.stage.buffer
            self._stored = await buffer.get_client_turns(self.key, self.session_id, lease=lease)
        return self._stored

    def store(self, turn: TurnNode) -> Report:
        """Sends a turn."""
        message = _message(self.key, turn)
        message.session_id, message.call_id = self.session_id, turn.call
        message.lease_token = self.token
        report = self.stage.send(self.session_id, message)
        report.add_done_callback(partial(self._on_report, message))
        return report

    def _on_report(self, message: SessionTurn, report: Report) -> None:
        outcome = None if report.cancelled() else report.result().outcome
        if outcome is CommitOutcome.REJECTED:
            self.on_loss()
        elif outcome is CommitOutcome.COMMITTED and self._stored is not None:
            self._stored.append(message)


def _message(key: StageKey, turn: TurnNode) -> SessionTurn:
    return SessionTurn(
        tenant=key.tenant,
        experiment_id=key.experiment_id,
        stage=key.stage,
        id=turn.id,
        parent_id="" if turn.parent is None else turn.parent.id,
        prompt_sha256=turn.prompt_sha256,
        ordinal=turn.ordinal,
        payload=encode_payload(turn),
        media_sha256=[image.sha256 for image in images_of(turn.messages)],
    )


@dataclass(frozen=True, slots=True)
class RunTurns:
    """The store of one run, under the lease of one attempt."""

    stage: StageTurns
    attempt: Attempt
    session_id: str

    @property
    def secret(self) -> str:
        """The secret part of the session's address: the same in every explorer."""
        return session_secret(self.attempt.assignment.session_key, self.session_id)

    async def load(self) -> list[SessionTurn]:
        """Returns the turns of earlier attempts, once all those on their way are reported on.

        Raises: RpcError.
        """
        await self.stage.wait_for_reports(self.session_id)
        assignment = self.attempt.assignment
        if not assignment.has_turns and self.attempt.number == assignment.first_attempt:
            return []
        retry = Retry(seconds=LOAD_SECONDS, timeout_error=Unavailable)
        return await retry.call_async(
            lambda: self.stage.buffer.get_turns(self.attempt.key, assignment, self.attempt.run)
        )

    def store(self, turn: TurnNode) -> Report:
        """Sends a turn."""
        message, assignment = _message(self.attempt.key, turn), self.attempt.assignment
        message.assignment_id, message.run = assignment.id, self.attempt.run
        message.lease_token = assignment.lease_token
        return self.stage.send(self.session_id, message)
