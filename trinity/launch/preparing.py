"""What the services do while there are no steps to show yet: models take their time to load."""

import asyncio
from typing import NoReturn, Protocol

import grpc

from trinity.api.v1 import synchronizer_pb2, synchronizer_pb2_grpc
from trinity.rpc.limits import CALL_SECONDS

POLL_SECONDS = 0.5
SAID = ("starting the engine", "loading the model")
SERVING = "serving at "
"""How a served model's address is told."""
ROLES = {synchronizer_pb2.ROLE_EXPLORER: "explorer", synchronizer_pb2.ROLE_TRAINER: "trainer"}


class Says(Protocol):
    """Where the lines go."""

    def say(self, text: str) -> None:
        """One line."""


async def say_preparations(
    synchronizer: synchronizer_pb2_grpc.SynchronizerServiceStub, reporter: Says
) -> NoReturn:
    """Say when a member begins to load a model and when it has; never returns."""
    doing: dict[str, str] = {}
    while True:
        try:
            answer: synchronizer_pb2.GetStatusResponse = await synchronizer.GetStatus(
                synchronizer_pb2.GetStatusRequest(), timeout=CALL_SECONDS
            )
        except grpc.aio.AioRpcError:
            pass  # a restart of the synchronizer, which others report
        else:
            for member in answer.members:
                _say_change(member, doing.get(member.id, ""), reporter)
                doing[member.id] = member.activity
        await asyncio.sleep(POLL_SECONDS)


def _say_change(member: synchronizer_pb2.Member, before: str, reporter: Says) -> None:
    role = ROLES.get(member.role)
    if role is None or member.activity == before:
        return
    if member.activity in SAID or member.activity.startswith(SERVING):
        reporter.say(f"{role}: {member.activity}")
    elif before in SAID:
        reporter.say(f"{role}: ready")
