"""Counters of this process, and the activity that its heartbeats show."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trinity.runtime.presence import Heartbeats
from trinity.types import SamplingParams
from trinity.workflows.generation import Generation, Generator, OnDelta, Scores

logger = logging.getLogger(__name__)

EXPLORING = "exploring"


@dataclass(slots=True)
class RolloutCounters:
    """Counters that the rollout work writes and the servicer reads."""

    num_running: int = 0
    num_generated_tokens: int = 0


class CountingGenerator:
    """Wraps a generator and counts the tokens that it generates, whether or not they are used.

    Samples cannot give this count: their tokens between turns are not generated, and some samples
    are never handed in.
    """

    def __init__(self, generator: Generator, counters: RolloutCounters) -> None:
        self._generator = generator
        self._counters = counters

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        """Continues the prompt."""
        generation = await self._generator.generate(
            prompt_token_ids, sampling, min_tokens=min_tokens, on_delta=on_delta
        )
        self._counters.num_generated_tokens += len(generation.token_ids)
        return generation

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """Scores given tokens, which are not counted."""
        return await self._generator.score(token_ids, num_likeliest=num_likeliest)


class AbandonsCalls(Protocol):
    """Runs calls that may go on after the wait for their result has ended."""

    @property
    def num_abandoned(self) -> int: ...


class AbandonedCallReporter:
    """Keeps the activity shown in heartbeats up to date."""

    def __init__(self, *, heartbeats: Heartbeats, sources: Sequence[AbandonsCalls]) -> None:
        self._heartbeats = heartbeats
        self._sources = sources
        self._num_abandoned = 0

    def report(self) -> None:
        """Updates the activity with the number of calls of users' code that outlive their run."""
        num_abandoned = sum(source.num_abandoned for source in self._sources)
        if num_abandoned > self._num_abandoned:
            logger.warning(
                "calls of users' code outlive their runs", extra={"calls": num_abandoned}
            )
        self._num_abandoned = num_abandoned
        note = f"; {num_abandoned} calls of users' code outlive their runs" if num_abandoned else ""
        self._heartbeats.set_activity(EXPLORING + note)
