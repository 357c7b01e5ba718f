"""Faults that a test switches on in the processes of a stack, by files in one folder."""

import asyncio
import os
from pathlib import Path
from typing import ClassVar

from services.explorer.engine.interface import EngineDied, EngineOptions
from tests.support.model_free.engine import HashEngine
from trinity.types import Experience, SamplingParams
from trinity.workflows.generation import Generation, OnDelta
from trinity.workflows.simple_workflow import SimpleWorkflow

FOLDER_VARIABLE = "TRINITY_TEST_FAULTS"
STRAGGLE, DIE = "straggle", "die"
KEPT_OF_TEN = 1


def switch_on(folder: Path, fault: str, value: str = "") -> None:
    """The next one to meet it has it; written whole, so that nobody reads half of it."""
    partial = folder / f"{fault}.partial"
    partial.write_text(value)
    partial.rename(folder / fault)


def claim(fault: str) -> str | None:
    """What was written for the fault; None if it is not switched on, or another one has it."""
    path = Path(os.environ[FOLDER_VARIABLE]) / fault
    mine = path.with_name(f"{fault}.{os.getpid()}")
    try:
        path.rename(mine)
    except FileNotFoundError:
        return None
    return mine.read_text()


class Straggler(SimpleWorkflow):
    """Sleeps for as many seconds as the fault says."""

    async def run_async(self) -> list[Experience]:
        """One experience, sooner or later."""
        if (seconds := claim(STRAGGLE)) is not None:
            await asyncio.sleep(float(seconds))
        return await super().run_async()


class Filtered(SimpleWorkflow):
    """Of ten tasks nine get no reward: the pipeline leaves their samples out."""

    async def run_async(self) -> list[Experience]:
        """One experience."""
        experiences = await super().run_async()
        if self.task.row % 10 >= KEPT_OF_TEN:
            for experience in experiences:
                experience.reward = None
        return experiences


class Failing(SimpleWorkflow):
    """Of ten tasks nine raise."""

    known_args: ClassVar[frozenset[str] | None] = frozenset()

    async def run_async(self) -> list[Experience]:
        """One experience, or none."""
        if self.task.row % 10 >= KEPT_OF_TEN:
            raise LookupError("the tool that this task needs is away")
        return await super().run_async()


class MortalEngine(HashEngine):
    """Dies as an engine's process does: what runs fails, and a look at it says why."""

    _is_dead = False

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        """Letters, while it lives."""
        self._is_dead = self._is_dead or claim(DIE) is not None
        if self._is_dead:
            raise RuntimeError("the engine's process is gone")
        return await super().generate(
            prompt_token_ids, sampling, min_tokens=min_tokens, on_delta=on_delta
        )

    async def check(self) -> None:
        """Raises: EngineDied when it has."""
        if self._is_dead:
            raise EngineDied("the rollout engine's process died")


async def start_mortal_engine(options: EngineOptions) -> MortalEngine:
    """A `StartEngine`."""
    return MortalEngine(options)
