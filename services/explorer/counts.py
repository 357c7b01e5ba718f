"""Counters of this process, shown by its gRPC service and its metrics."""

from dataclasses import dataclass

from trinity.types import SamplingParams
from trinity.workflows.generation import Generation, Generator, Heard, Scores


@dataclass(slots=True)
class Counts:
    """Counters that the rollout work writes and the servicer reads."""

    num_running: int = 0
    num_generated_tokens: int = 0


class CountedGenerator:
    """Wraps a generator and counts the tokens that it generates, whether or not they are used.

    Samples cannot give this count: their tokens between turns are not generated, and some samples
    are never handed in.
    """

    def __init__(self, generator: Generator, counts: Counts) -> None:
        self._generator = generator
        self._counts = counts

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        heard: Heard | None = None,
    ) -> Generation:
        """Continues the prompt."""
        generation = await self._generator.generate(
            prompt_token_ids, sampling, min_tokens=min_tokens, heard=heard
        )
        self._counts.num_generated_tokens += len(generation.token_ids)
        return generation

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """Scores given tokens, which are not counted."""
        return await self._generator.score(token_ids, num_likeliest=num_likeliest)
