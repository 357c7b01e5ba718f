"""Selection of a batch by priority from the replay buffer, and eviction of other samples.

A cooldown counts train steps unless it has a unit of time: with seconds, a run that was killed
would compose another batch than one that was not. How often a sample was used is counted in its
batches and stored nowhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from services.buffer.domain.stage import Stage
from services.buffer.domain.task_draws import hash_uniform
from trinity.algorithm.priority.candidate import Candidate
from trinity.config.plan.parts import ResolvedReplay

SamplePlace = tuple[int, int, int, int, str]
HALF_HASH_STEP = 2.0**-54
"""Added to each hashed number, a multiple of twice this: the normal quantile of 0 is infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCandidate:
    """A sample that may enter a batch, for the first time or again."""

    experience_id: str
    place: SamplePlace
    """Explore step, position, run, step, suffix."""
    version: int | None
    """Of its oldest token."""
    reward: float | None
    advantage: float
    newest_version: int | None = None
    """Of its newest token."""
    num_uses: int = 0
    last_step: int = 0
    """The newest train step that used it; 0 before the first."""
    rested_seconds: float = 0.0
    """Time since the batch of that step was composed, by the database's clock."""

    @property
    def is_unused(self) -> bool:
        """True if it was in no batch yet."""
        return self.num_uses == 0


@dataclass(frozen=True, slots=True)
class ReplaySelection:
    """The decision on all waiting samples."""

    taken: Sequence[ReplayCandidate]
    """The batch's rows, in order."""
    retired: Sequence[ReplayCandidate] = ()
    """Previously trained samples that are not used again."""
    dropped: Sequence[ReplayCandidate] = ()
    """Never trained samples for which there is no room."""
    refused: Sequence[ReplayCandidate] = ()
    """Never trained samples that the priority function gave no priority."""
    num_kept: int = 0
    """Number of samples that stay, including taken ones if they may be used again."""

    @property
    def unused(self) -> list[ReplayCandidate]:
        """Taken samples that were in no batch yet."""
        return [row for row in self.taken if row.is_unused]

    @property
    def replayed(self) -> list[ReplayCandidate]:
        """Taken samples that were in a batch before."""
        return [row for row in self.taken if not row.is_unused]


def candidates_of(waiting: Sequence[ReplayCandidate], seed: int) -> list[Candidate]:
    """Returns the candidates that the priority function sees."""
    normals = _normals(waiting, seed)
    return [
        Candidate(
            model_version=row.version or 0,
            use_count=row.num_uses,
            reward=row.reward,
            advantage=row.advantage,
            normal=normal,
        )
        for row, normal in zip(waiting, normals, strict=True)
    ]


def select_replay_batch(
    waiting: Sequence[ReplayCandidate],
    priorities: Sequence[float | None],
    replay: ResolvedReplay,
    *,
    step: int,
    size: int,
) -> ReplaySelection:
    """Takes the `size` highest priorities for train step `step`; ties go in order of place.

    The buffer holds `capacity` samples. Previously trained ones are evicted first, lowest priority
    first. If the never trained ones alone exceed the capacity, the excess is dropped or is taken
    before any other, by `when_full`.
    """
    best = _best_first(waiting, priorities)
    unused = [row for row in best if row.is_unused]
    used = [row for row in best if not row.is_unused]
    room = max(replay.capacity - len(unused), 0)
    dropped = unused[replay.capacity :] if replay.when_full == "drop" else []
    unused = unused[: len(unused) - len(dropped)]
    first = set(_ids(unused[: max(len(unused) - replay.capacity, 0)]))
    ready = {row.experience_id for row in used[:room] if is_cooled_down(row, replay, step)}
    ready |= set(_ids(unused))
    able = [row for row in best if row.experience_id in ready]
    taken = sorted(able, key=lambda row: row.experience_id not in first)[:size]
    unwanted = [row for row, priority in zip(waiting, priorities, strict=True) if priority is None]
    kept = len(unused) + len(used[:room])
    return ReplaySelection(
        taken=taken,
        retired=[*used[room:], *(row for row in unwanted if not row.is_unused)],
        dropped=dropped,
        refused=[row for row in unwanted if row.is_unused],
        num_kept=kept if replay.cooldown_steps is not None else kept - len(taken),
    )


def is_cooled_down(row: ReplayCandidate, replay: ResolvedReplay, step: int) -> bool:
    """Returns whether a previously trained sample may be trained again in `step`."""
    return (
        replay.cooldown_steps is not None
        and row.last_step + replay.cooldown_steps <= step
        and row.rested_seconds >= replay.cooldown_seconds
    )


def _best_first(
    waiting: Sequence[ReplayCandidate], priorities: Sequence[float | None]
) -> list[ReplayCandidate]:
    ranked = [
        (-priority, row.place, row)
        for row, priority in zip(waiting, priorities, strict=True)
        if priority is not None
    ]
    return [row for *_, row in sorted(ranked, key=lambda ranks: ranks[:2])]


def _ids(waiting: Sequence[ReplayCandidate]) -> list[str]:
    return [row.experience_id for row in waiting]


def _normals(waiting: Sequence[ReplayCandidate], seed: int) -> list[float]:
    """Returns normal draws hashed from the group's place and uses: groups stay together."""
    if not waiting:
        return []
    places_N3 = np.array([(*row.place[:2], row.num_uses) for row in waiting], dtype=np.int64)
    lots = hash_uniform(seed, *places_N3.T)
    inverse = NormalDist().inv_cdf
    return [inverse(lot + HALF_HASH_STEP) for lot in lots.tolist()]


def last_releasable_step(stage: Stage, oldest_kept: int) -> int:
    """Returns the newest train step whose batch is never trained again, or 0.

    `oldest_kept` is the step of the oldest checkpoint that a trainer may resume from.
    """
    keep_steps = stage.plan.config.buffer.keep_steps
    if keep_steps is None:
        return 0
    return max(0, min(oldest_kept, stage.trained_step - keep_steps))
