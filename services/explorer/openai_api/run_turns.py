"""The turns of a stage's runs: sent with the results, and read where a run goes on."""

import asyncio
import hashlib
import hmac
from dataclasses import dataclass, field

from services.explorer.clients.buffer import ExplorerBufferClient
from services.explorer.delivery.outbox import Outbox
from services.explorer.types import Attempt, ResultReport
from trinity.api.v1.experience_pb2 import SessionTurn
from trinity.data.images import images_of
from trinity.errors import Unavailable
from trinity.runtime.retry import Retry
from trinity.runtime.session_ids import session_id
from trinity.workflows.answers import TurnNode
from trinity.workflows.turn_codec import encode_payload

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

    async def wait_for_reports(self, own_id: str) -> None:
        """Waits until all turns of a session are reported on."""
        while sent := self._sent.get(own_id):
            await asyncio.wait(sent)

    def _forget(self, own_id: str, report: Report) -> None:
        self._sent[own_id].discard(report)
        if not self._sent[own_id]:
            del self._sent[own_id]


@dataclass(frozen=True, slots=True)
class RunTurns:
    """The store of one run, under the lease of one attempt."""

    stage: StageTurns
    attempt: Attempt
    session_id: str

    @property
    def secret(self) -> str:
        """The secret part of the session's address: the same in every explorer."""
        key = self.attempt.assignment.session_key
        return hmac.digest(key, self.session_id.encode(), hashlib.sha256).hex()

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
        key, assignment = self.attempt.key, self.attempt.assignment
        message = SessionTurn(
            tenant=key.tenant,
            experiment_id=key.experiment_id,
            stage=key.stage,
            assignment_id=assignment.id,
            run=self.attempt.run,
            lease_token=assignment.lease_token,
            id=turn.id,
            parent_id="" if turn.parent is None else turn.parent.id,
            prompt_sha256=turn.prompt_sha256,
            ordinal=turn.ordinal,
            payload=encode_payload(turn),
            media_sha256=[image.sha256 for image in images_of(turn.messages)],
        )
        return self.stage.send(self.session_id, message)
