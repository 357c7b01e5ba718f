"""Counts of what this process does, for those who ask it."""

from dataclasses import dataclass

from trinity.types import SamplingParams
from trinity.workflows.generation import Generation, Generator, Heard, Scores


@dataclass(slots=True)
class Counts:
    """Written by the work, read by the servicer."""

    num_running: int = 0
    num_generated_tokens: int = 0


class CountedGenerator:
    """The generator; tokens that it makes are counted, whatever becomes of them.

    Samples cannot tell: between the turns of one are others' tokens, and some are never handed in.
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
        """Continue the prompt."""
        generation = await self._generator.generate(
            prompt_token_ids, sampling, min_tokens=min_tokens, heard=heard
        )
        self._counts.num_generated_tokens += len(generation.token_ids)
        return generation

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """Of given tokens, which are not counted."""
        return await self._generator.score(token_ids, num_likeliest=num_likeliest)
