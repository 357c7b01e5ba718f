"""Shapes groups: reads their samples, calls the advantage function, says what came of them."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np

from services.buffer.advantages import AdvantageFailed, Advantages, Computed
from services.buffer.details import read_details
from services.buffer.domain.comparison import Comparison
from services.buffer.domain.group import Detail, Group, Outcome
from services.buffer.domain.operator import Operator
from services.buffer.domain.stage import Stage
from services.buffer.handlers.grouping import Shaped
from services.buffer.store.claims import Claim
from services.buffer.store.database import Database
from services.buffer.store.experiences import load_bodies, load_raw_samples
from trinity.algorithm.advantage import samples as contract
from trinity.types import StageKey
from trinity.waits import Waits

SHOWN_AFTER_SECONDS = 1.0
READ_AT_ONCE = 256
"""Whole samples in memory together."""
NOTHING_TO_COMPARE = contract.Advantages(np.zeros(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Groups that the function sees in one call."""

    claims: Sequence[Claim]
    comparison: Comparison

    def shaped(self, operator: Operator, computed: Computed) -> list[Shaped]:
        """What came of each; of a whole explore step all or nothing."""
        outcomes = self._outcomes(computed)
        error = next((outcome.error for outcome in outcomes if outcome.error), "")
        if error and operator.needs.whole_step:
            outcomes = [Outcome(error=error) for _ in outcomes]
        return [
            Shaped(claim=claim, operator=operator.name, outcome=outcome)
            for claim, outcome in zip(self.claims, outcomes, strict=True)
        ]

    def _outcomes(self, computed: Computed) -> list[Outcome]:
        if isinstance(computed, str):
            return [Outcome(error=computed) for _ in self.claims]
        try:
            return self.comparison.outcomes(computed)
        except ValueError as error:
            return [Outcome(error=str(error)) for _ in self.claims]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaper:
    """Computes, and changes nothing in the database."""

    database: Database
    advantages: Advantages
    waits: Waits

    async def operator_of(self, stage: Stage) -> Operator:
        """The stage's function with its needs; one that cannot be loaded says so when called."""
        operator = Operator.of(stage.plan.algorithm)
        try:
            needs = await self.advantages.needs(operator.name, operator.arguments)
        except AdvantageFailed:
            return operator
        return replace(operator, needs=needs)

    async def shape(
        self, stage: Stage, operator: Operator, claims: Sequence[Claim]
    ) -> list[Shaped]:
        """What came of these groups; those that are missing in it were not tried."""
        groups = await self._load_groups(stage.key, claims)
        details = await self._load_details(stage.key, operator, groups)
        parts = await asyncio.to_thread(_parts, operator, claims, groups, details, stage.seed)
        empty = [part for part in parts if not part.comparison.ids]
        asked = [part for part in parts if part.comparison.ids]
        with self._shown(operator, claims):
            samples = [part.comparison.samples for part in asked]
            computed = await self.advantages.compute(operator.name, operator.arguments, samples)
        answers = [
            *zip(asked, computed, strict=False),
            *((one, NOTHING_TO_COMPARE) for one in empty),
        ]
        shaped = [await asyncio.to_thread(part.shaped, operator, one) for part, one in answers]
        return [one for some in shaped for one in some]

    def _shown(self, operator: Operator, claims: Sequence[Claim]) -> AbstractContextManager[None]:
        what = f"{len(claims)} groups, the first of assignment {claims[0].assignment_id}"
        return self.waits.if_longer(
            SHOWN_AFTER_SECONDS,
            for_="advantage function",
            reason=f"{operator.name} to shape {what}",
            deadline_seconds=self.advantages.limit_seconds,
        )

    async def _load_groups(self, key: StageKey, claims: Sequence[Claim]) -> list[Group]:
        ids = [claim.assignment_id for claim in claims]
        async with self.database.transaction() as connection:
            samples = await load_raw_samples(connection, key, ids)
        return [
            Group(
                explore_step=claim.explore_step,
                position=claim.position,
                samples=samples[claim.assignment_id],
            )
            for claim in claims
        ]

    async def _load_details(
        self, key: StageKey, operator: Operator, groups: Sequence[Group]
    ) -> dict[str, Detail]:
        """What the function needs to know from whole samples, by experience."""
        if not operator.needs.reads_samples:
            return {}
        ids = [one.experience_id for group in groups for one in group.compared]
        details: dict[str, Detail] = {}
        for first in range(0, len(ids), READ_AT_ONCE):
            some = ids[first : first + READ_AT_ONCE]
            async with self.database.transaction() as connection:
                bodies = await load_bodies(connection, key, some)
            read = await asyncio.to_thread(read_details, bodies, operator.needs)
            details |= zip(some, read, strict=True)
        return details


def _parts(
    operator: Operator,
    claims: Sequence[Claim],
    groups: Sequence[Group],
    details: Mapping[str, Detail],
    seed: int,
) -> list[Part]:
    """One for all groups, or one for each."""
    size = len(groups) if operator.takes_many_groups else 1
    return [
        Part(
            claims=claims[first : first + size],
            comparison=Comparison.of(groups[first : first + size], details, seed),
        )
        for first in range(0, len(groups), size)
    ]
