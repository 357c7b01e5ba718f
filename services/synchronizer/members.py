"""Members: live processes, the versions they use and their waits."""

import uuid
from dataclasses import dataclass, replace

from services.synchronizer.domain import Role
from trinity.runtime.members import MemberPhase

HEARTBEAT_SECONDS = 2.0
LIVE_SECONDS = 10.0
"""A member that has been silent for longer pins no versions."""
EXPIRY_SECONDS = 600.0
"""A member that has been silent for longer is deleted."""
_SHORTEST_DEADLINE_SECONDS = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberWait:
    """Something that a member waits for; 0 seconds means no deadline."""

    owner: str
    waits_for: str
    reason: str
    waited_seconds: float
    deadline_seconds: float
    kind: int
    """A number of the contract, which is passed on."""
    experiment_id: str

    def aged(self, seconds: float) -> "MemberWait":
        """Returns the wait as it is so many seconds after it was reported."""
        deadline = self.deadline_seconds
        if deadline > 0:
            deadline = max(deadline - seconds, _SHORTEST_DEADLINE_SECONDS)
        return replace(
            self, waited_seconds=self.waited_seconds + seconds, deadline_seconds=deadline
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A process of the system, as it described itself `silent_seconds` ago."""

    id: uuid.UUID
    role: Role
    address: str
    experiment_id: uuid.UUID | None
    stage: str
    activity: str
    version: int
    pinned_versions: tuple[int, ...]
    waits: tuple[MemberWait, ...]
    silent_seconds: float = 0.0
    tenant: str = ""
    """The tenant of the token that reported it; empty for all tenants."""
    phase: MemberPhase = MemberPhase.WORKING


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedWait:
    """A wait that has ended, with its process; see `MAX_CLOSED_WAITS`."""

    number: int
    """Counts the told waits of its process."""
    owner: str
    waits_for: str
    reason: str
    waited_seconds: float
    ended_seconds_ago: float
    experiment_id: uuid.UUID | None
    stage: str
    member_id: uuid.UUID
    role: Role
    address: str


MAX_CLOSED_WAITS = 1_000
"""Limit for each experiment, and for the idle members of each tenant; the newest are kept."""
