"""The place of a run: a directory of this machine, or an experiment of a deployment."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from trinity.api.v1 import synchronizer_pb2
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.errors import Forbidden, NotFound, Unauthenticated, UserError
from trinity.runtime.host_port import split_address
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.errors import answer_of
from trinity.runtime.security.credentials import VARIABLE, Credentials
from trinity.runtime.security.plaintext_policy import refuse_plain_service

RUNNING = synchronizer_pb2.EXPERIMENT_STATE_RUNNING
ANSWER_SECONDS = 5.0
MAX_NAMED = 5
"""Most experiments that a message lists."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Services by address, host:port, and the label or id of the experiment that is meant."""

    synchronizer: str
    buffer: str
    experiment: str = ""
    security: Credentials = field(default_factory=Credentials.from_environment)

    def check(self) -> None:
        """Raises: UserError if an address is invalid or may not be used in plaintext."""
        for address in (self.synchronizer, self.buffer):
            split_address(address)
            if not self.security.is_on:
                refuse_plain_service(address)

    async def experiments(self) -> list[synchronizer_pb2.Experiment]:
        """Returns the experiments of that label or id, or all, newest first.

        Raises: UserError if the token is refused; RpcError if there is no answer.
        """
        request = synchronizer_pb2.GetStatusRequest()
        if _UUID.fullmatch(self.experiment):
            request.experiment_id = self.experiment
        else:
            request.label = self.experiment
        async with open_channel(self.synchronizer, self.security) as channel:
            call = SynchronizerServiceStub(channel).GetStatus(request, timeout=ANSWER_SECONDS)
            try:
                status: synchronizer_pb2.GetStatusResponse = await answer_of(call)
            except (Unauthenticated, Forbidden) as error:
                raise UserError(
                    f"the synchronizer at {self.synchronizer} refuses ({error}): put a token with "
                    f"the scope `read` (`trinity token --scope read`) into the folder of {VARIABLE}"
                ) from error
            except NotFound:
                return []
        return list(status.experiments)

    async def find(self) -> synchronizer_pb2.Experiment | None:
        """Returns the experiment that is meant: else the only one that runs, else the newest.

        Raises: UserError if it is unknown, or if several run; RpcError if there is no answer.
        """
        known = await self.experiments()
        if self.experiment and not known:
            raise UserError(
                f"the synchronizer at {self.synchronizer} knows no experiment {self.experiment}: "
                "leave --experiment out for the one that runs, or give the label or the id of "
                "another"
            )
        running = [found for found in known if found.state == RUNNING]
        if len(running) > 1:
            listed = ", ".join(f"{found.label} ({found.id})" for found in running[:MAX_NAMED])
            more = f" and {len(running) - MAX_NAMED} more" if len(running) > MAX_NAMED else ""
            raise UserError(
                "several experiments run there: give one's label or id as --experiment: "
                f"{listed}{more}"
            )
        return next(iter(running or known), None)


RunLocation: TypeAlias = Path | Deployment
