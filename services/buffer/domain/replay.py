"""Which samples a batch takes by priority, and which do not wait any longer."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from services.buffer.domain.lots import draw_lots
from trinity.algorithm.priority.candidate import Candidate
from trinity.config.plan_parts import ResolvedReplay

SamplePlace = tuple[int, int, int, int, str]
HALF_A_LOT = 2.0**-54
"""Lots are multiples of twice this; 0 has no place in a normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A sample that may come into a batch, for the first time or again."""

    experience_id: str
    place: SamplePlace
    """Explore step, position, run, step, suffix."""
    version: int | None
    reward: float | None
    advantage: float
    num_uses: int = 0
    last_step: int = 0
    """The newest train step that used it; 0 before the first."""

    @property
    def is_unused(self) -> bool:
        """Whether it was in no batch yet."""
        return self.num_uses == 0


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of the samples that wait."""

    taken: Sequence[Waiting]
    """The batch's rows, in order."""
    retired: Sequence[Waiting] = ()
    """Those trained before that do not come again."""
    dropped: Sequence[Waiting] = ()
    """Those never trained for which there is no room."""
    refused: Sequence[Waiting] = ()
    """Those never trained which the priority function does not want."""
    num_kept: int = 0
    """Those that wait on, the taken ones among them if they may come again."""

    @property
    def unused(self) -> list[Waiting]:
        """Those of the taken ones that were in no batch yet."""
        return [one for one in self.taken if one.is_unused]

    @property
    def replayed(self) -> list[Waiting]:
        """The others."""
        return [one for one in self.taken if not one.is_unused]


def candidates_of(waiting: Sequence[Waiting], seed: int) -> list[Candidate]:
    """What the priority function sees of them."""
    normals = _normals(waiting, seed)
    return [
        Candidate(
            model_version=one.version or 0,
            use_count=one.num_uses,
            reward=one.reward,
            advantage=one.advantage,
            normal=normal,
        )
        for one, normal in zip(waiting, normals, strict=True)
    ]


def choose(
    waiting: Sequence[Waiting],
    priorities: Sequence[float | None],
    replay: ResolvedReplay,
    *,
    step: int,
    size: int,
) -> Choice:
    """Take the `size` highest priorities for train step `step`; ties go in order of place.

    The buffer holds `capacity` samples. Those trained before leave first, the lowest of them. If
    those never trained alone are more, they are dropped or taken before any other, as asked.
    """
    best = _best_first(waiting, priorities)
    unused = [one for one in best if one.is_unused]
    used = [one for one in best if not one.is_unused]
    room = max(replay.capacity - len(unused), 0)
    dropped = unused[replay.capacity :] if replay.when_full == "drop" else []
    unused = unused[: len(unused) - len(dropped)]
    first = set(_ids(unused[: max(len(unused) - replay.capacity, 0)]))
    ready = {one.experience_id for one in used[:room] if has_rested(one, replay, step)}
    ready |= set(_ids(unused))
    able = [one for one in best if one.experience_id in ready]
    taken = sorted(able, key=lambda one: one.experience_id not in first)[:size]
    gone = [one for one, priority in zip(waiting, priorities, strict=True) if priority is None]
    kept = len(unused) + len(used[:room])
    return Choice(
        taken=taken,
        retired=[*used[room:], *(one for one in gone if not one.is_unused)],
        dropped=dropped,
        refused=[one for one in gone if one.is_unused],
        num_kept=kept if replay.cooldown_steps is not None else kept - len(taken),
    )


def has_rested(one: Waiting, replay: ResolvedReplay, step: int) -> bool:
    """Whether a sample that was trained before may be trained again in `step`."""
    return replay.cooldown_steps is not None and one.last_step + replay.cooldown_steps <= step


def _best_first(waiting: Sequence[Waiting], priorities: Sequence[float | None]) -> list[Waiting]:
    ranked = [
        (-priority, one.place, one)
        for one, priority in zip(waiting, priorities, strict=True)
        if priority is not None
    ]
    return [one for *_, one in sorted(ranked, key=lambda ranks: ranks[:2])]


def _ids(waiting: Sequence[Waiting]) -> list[str]:
    return [one.experience_id for one in waiting]


def _normals(waiting: Sequence[Waiting], seed: int) -> list[float]:
    """From the group's place and its uses: samples of a group stay together."""
    if not waiting:
        return []
    places_N3 = np.array([(*one.place[:2], one.num_uses) for one in waiting], dtype=np.int64)
    lots = draw_lots(seed, *places_N3.T)
    inverse = NormalDist().inv_cdf
    return [inverse(lot + HALF_A_LOT) for lot in lots.tolist()]
