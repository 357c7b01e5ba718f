"""When the experiment is back at work after a death: the first thing done that needs what died.

| died | back at work with |
|---|---|
| explorer | the first result stored of an explorer that was not there before |
| trainer, rank | the first step reported by an incarnation that began after it |
| broker | the first result stored after its process was started again |
| buffer, database, launcher | the first result stored or step reported after that |
| synchronizer | the first version announced after its process was started again |
| stopped for a while, or with another time of day | the first of its kind that is done after it |
| disk that was full | the first result stored or step reported once it has room |
"""

import signal
import time
from dataclasses import dataclass
from typing import Literal, get_args

import psycopg

from tests.chaos.arena import Arena
from tests.chaos.points import POINTS
from tests.chaos.strains import CLOCK, CLOCKED, CUTS, DISK_FULL, FULL

Kind = Literal[
    "explorer", "buffer", "trainer", "rank", "synchronizer", "nats", "postgres", "launcher", "disk",
    "host",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
KILLED = KINDS[:-2]
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGSTOP": signal.SIGSTOP}
STRAINS = (*(f"{kind} {CLOCK}" for kind in CLOCKED), DISK_FULL)
RANDOM = (*(f"{kind} {name}" for kind in KILLED for name in SIGNALS), *STRAINS)
"""Random strikes: a signal for a process, or a strain. One that survives goes on as before."""
ALONE, TWO_HOSTS = "alone", "two_hosts"
BASELINE = tuple(f"{kind} SIGKILL {ALONE}" for kind in KILLED)
"""The same where there is one task a step: what the time to recover is held against."""
STRUCK = (*RANDOM, *BASELINE, *(f"host {name}" for name in SIGNALS), *CUTS)
"""All of the ledger but for the points."""
PASSING = ("SIGSTOP", CLOCK, FULL)


def variety_of(target: str) -> str:
    """The only kind of experiment in which this can be struck, if there is one."""
    if target in POINTS:
        return POINTS[target].variety
    if target in CUTS:
        return "hosts"
    return TWO_HOSTS if target.startswith("host ") else ALONE if target in BASELINE else ""


NEW_EXPLORER = """
    SELECT min(one.received_at) FROM run_attempt one
    WHERE one.received_at > to_timestamp(%(last)s) AND NOT EXISTS (
        SELECT FROM run_attempt other
        WHERE other.producer = one.producer AND other.received_at <= to_timestamp(%(since)s))
"""
NEW_LIFE = """
    SELECT min(reported_at) FROM step_report
    JOIN incarnation USING (tenant, experiment_id, stage, incarnation)
    WHERE began_at > to_timestamp(%(since)s) AND reported_at > to_timestamp(%(last)s)
"""
RESULT_STORED = """
    SELECT min(received_at) FROM run_attempt WHERE received_at > to_timestamp(%(since)s)
"""
ANYTHING_STORED = """
    SELECT least(
        (SELECT min(received_at) FROM run_attempt WHERE received_at > to_timestamp(%(since)s)),
        (SELECT min(reported_at) FROM step_report WHERE reported_at > to_timestamp(%(since)s)))
"""
STEP_REPORTED = """
    SELECT min(reported_at) FROM step_report WHERE reported_at > to_timestamp(%(since)s)
"""
VERSION_ANNOUNCED = """
    SELECT min(published_at) FROM version WHERE published_at > to_timestamp(%(since)s)
"""
QUERIES: dict[Kind, tuple[str, str]] = {
    "explorer": ("buffer-postgres-dsn", NEW_EXPLORER),
    "trainer": ("buffer-postgres-dsn", NEW_LIFE),
    "rank": ("buffer-postgres-dsn", NEW_LIFE),
    "host": ("buffer-postgres-dsn", NEW_LIFE),
    "buffer": ("buffer-postgres-dsn", ANYTHING_STORED),
    "nats": ("buffer-postgres-dsn", RESULT_STORED),
    "postgres": ("buffer-postgres-dsn", ANYTHING_STORED),
    "launcher": ("buffer-postgres-dsn", ANYTHING_STORED),
    "disk": ("buffer-postgres-dsn", ANYTHING_STORED),
    "synchronizer": ("synchronizer-postgres-dsn", VERSION_ANNOUNCED),
}
OF_GANG = ("trainer", "rank", "host")
GOING_ON = {"explorer": RESULT_STORED, **dict.fromkeys(OF_GANG, STEP_REPORTED)}
"""Of a process that was stopped and goes on: it is no new one."""
RESTARTED_FIRST = {"buffer", "nats", "postgres", "synchronizer", "launcher"}
"""What these do is also done by those who were there before: it counts from the restart on."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Looks for the first sign that a death is overcome."""

    arena: Arena
    kind: Kind
    died_at: float
    last_death: float
    """Of those that overlap with it: from then on counts what is done."""
    is_same_process: bool = False
    """It did not die, and went on at `died_at`."""

    def back_at(self) -> float | None:
        """When it was, if it is."""
        is_restarted = self.kind in RESTARTED_FIRST and not self.is_same_process
        since = self._restarted_at() if is_restarted else self.died_at
        if since is None:
            return None
        times = {"since": since, "last": self.last_death}
        secret, query = QUERIES[self.kind]
        if self.is_same_process:
            times["since"] = self.last_death
            query = GOING_ON.get(self.kind, query)
        try:
            with psycopg.connect(self.arena.secret(secret), connect_timeout=2) as connection:
                row = connection.execute(query, times).fetchone()
        except psycopg.OperationalError:
            return None
        return row[0].timestamp() if row and row[0] else None

    def _restarted_at(self) -> float | None:
        starts = [at for name, at in self.arena.restarts if name == self.kind and at > self.died_at]
        return max(min(starts), self.last_death) if starts else None

    def seconds_so_far(self) -> float:
        """Since the last death."""
        return time.time() - self.last_death
