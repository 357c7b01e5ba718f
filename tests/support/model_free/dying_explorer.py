"""An explorer that dies during an evaluation, whose weights are then bad.

`python -m tests.support.model_free.dying_explorer`. By then the trainer has newer weights or has
finished, so that it cannot write the evaluated ones again.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.explorer.engine.weight_transfer import WeightLoader
from services.explorer.rollout.runner import AttemptRunner
from services.explorer.settings import ExplorerSettings
from services.explorer.types import Attempt, AttemptResult, RolloutKind, WeightsId, WeightsVersion
from tests.support.model_free.damage import flip_a_bit
from tests.support.model_free.explorer import serve_until
from trinity.runtime.rpc.runner import run_service

EVALUATED = 2
"""The version that is lost."""
VERSION_VARIABLE = "TRINITY_TEST_EVALUATED"
"""Another version, the final one: its evaluation begins when the trainer finishes."""
_loaded: list[Path] = []


def die_once() -> None:
    """Replaces the loader's and the runner's methods."""
    load, run = WeightLoader.load_published, AttemptRunner.run_attempts

    async def load_and_note(self: WeightLoader, weights: WeightsVersion, *rest: Any) -> None:
        await load(self, weights, *rest)
        _loaded.append(weights.path)

    async def run_or_die(
        self: AttemptRunner, attempts: Sequence[Attempt], weights: WeightsId
    ) -> list[AttemptResult]:
        assignment = attempts[0].assignment
        if assignment.kind is RolloutKind.EVAL and assignment.explore_step == _evaluated():
            await _die_once(_loaded[-1])
        return await run(self, attempts, weights)

    WeightLoader.load_published = load_and_note  # type: ignore[method-assign,assignment]
    AttemptRunner.run_attempts = run_or_die  # type: ignore[method-assign]


def _evaluated() -> int:
    return int(os.environ.get(VERSION_VARIABLE, EVALUATED))


async def _die_once(path: Path) -> None:
    marker = path.parent / "died"
    if marker.exists():
        return
    newer = path.parent / f"v{EVALUATED + 1}-1"
    while _evaluated() == EVALUATED and not newer.exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.05)
    marker.touch()
    flip_a_bit(path)
    os._exit(1)


if __name__ == "__main__":
    die_once()
    sys.exit(run_service("explorer", ExplorerSettings, serve_until))
