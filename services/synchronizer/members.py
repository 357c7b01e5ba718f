"""Who lives, what it uses and what it waits for."""

import uuid
from dataclasses import dataclass, replace

from services.synchronizer.domain import Role

HEARTBEAT_SECONDS = 2.0
LIVE_SECONDS = 10.0
"""A member silent for longer pins nothing."""
REMEMBERED_SECONDS = 600.0
"""A member silent for longer is forgotten."""
GONE = "gone"
"""Activity of a member that says goodbye."""
_SHORTEST_DEADLINE_SECONDS = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Something a member waits for; a deadline of 0 is none."""

    owner: str
    waits_for: str
    reason: str
    waited_seconds: float
    deadline_seconds: float

    def aged(self, seconds: float) -> "Wait":
        """The wait some time after it was reported."""
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
    waits: tuple[Wait, ...]
    silent_seconds: float = 0.0
