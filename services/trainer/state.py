"""What the trainer does now: read by status calls, told to the synchronizer."""

import uuid
from dataclasses import dataclass, field

from services.trainer import messages
from trinity.members import Heartbeats, Waiting


@dataclass(slots=True)
class TrainerState:
    """One per process; what is set goes out with the next heartbeat."""

    trainer_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    experiment_id: str = ""
    stage: str = ""
    activity: str = "starting"
    incarnation: int = 0
    step: int = 0
    """Newest step trained; lives that train again do not lower it."""
    num_ranks: int = 0
    num_gang_starts: int = 0
    heartbeats: Heartbeats | None = None
    wait: Waiting | None = None

    def begin(self, experiment_id: str, stage: str) -> None:
        """Work on a stage."""
        self.experiment_id, self.stage = experiment_id, stage
        self.incarnation = self.step = self.num_gang_starts = 0
        self.note_wait(messages.Waiting())
        if self.heartbeats is not None:
            self.heartbeats.set_work(experiment_id, stage)

    def idle(self) -> None:
        """Work on nothing."""
        if self.experiment_id or self.activity == "starting":
            self.begin("", "")
            self._set_activity("waiting for a stage")

    def note_activity(self, report: messages.Activity) -> bool:
        """Take the first rank's report; answers whether a step is trained for the first time."""
        is_progress = report.step > self.step
        self.incarnation = report.incarnation
        self.step = max(self.step, report.step)
        self._set_activity(report.activity)
        if self.heartbeats is not None:
            self.heartbeats.set_version(report.version)
        return is_progress

    def note_wait(self, wait: messages.Waiting) -> None:
        """The first rank waits, or no longer does; a wait for the same peer goes on."""
        if self.heartbeats is None:
            return
        if self.wait is not None:
            if (self.wait.waits_for, self.wait.reason) == (wait.waits_for, wait.reason):
                return
            self.heartbeats.waits.end(self.wait)
            self.wait = None
        if wait.waits_for:
            self.wait = self.heartbeats.waits.begin(
                for_=wait.waits_for, reason=wait.reason, deadline_seconds=wait.deadline_seconds
            )

    def _set_activity(self, activity: str) -> None:
        self.activity = activity
        if self.heartbeats is not None:
            self.heartbeats.set_activity(activity)
