"""Users' functions run again, to the same end, whoever dies while they run: they or the buffer.

Without that protection the weights at the end are others, and it is found.
"""

from collections.abc import Mapping

import pytest
import pytest_asyncio
from pydantic import JsonValue

from tests.chaos.arena import Arena
from tests.chaos.checks import findings
from tests.chaos.crash import DEATHS
from tests.chaos.own_operators import ADVANTAGE, BUFFER, OPERATOR
from tests.chaos.shared_arena import ON_IT
from tests.chaos.snapshot import Snapshot
from tests.support.model_free.experiment import final_weights

NUM_STEPS = 4
END_SECONDS = 200.0
"""Deaths take a while on a busy machine."""
HERE = "tests.chaos.own_operators"
POINTS = (OPERATOR, ADVANTAGE, BUFFER)
OPERATORS: tuple[JsonValue, ...] = ({"name": f"{HERE}.first_is_better", "args": {"bonus": 0.5}},)
ALGORITHM: Mapping[str, JsonValue] = {
    "algorithm_type": "grpo",
    "advantage_fn": f"{HERE}.above_the_mean",
}
pytestmark = [ON_IT, pytest.mark.timeout(500)]


async def record_of(arena: Arena, name: str, expected: str = "") -> Snapshot:
    ended = await arena.run(
        f"operators-{name}",
        num_steps=NUM_STEPS,
        end_seconds=END_SECONDS,
        algorithm=ALGORITHM,
        operators=OPERATORS,
    )
    return arena.snapshot(ended, expected or final_weights(ended))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def undisturbed(arena: Arena) -> str:
    """The weights that it ends with when nobody dies."""
    record = await record_of(arena, "undisturbed")
    assert findings(record) == {}
    return record.weights


async def test_whoever_dies_meanwhile_the_weights_are_the_same(
    arena: Arena, undisturbed: str
) -> None:
    known = len(list(arena.folder.read(DEATHS)))
    for point in POINTS:
        arena.folder.arm(point)
    record = await record_of(arena, "struck", undisturbed)
    assert findings(record) == {}
    assert len(list(arena.folder.read(DEATHS))) - known == len(POINTS)


@pytest.mark.thorough
@pytest.mark.parametrize("point", [OPERATOR, BUFFER])
async def test_a_function_that_is_thought_done_is_missed(
    arena: Arena, undisturbed: str, point: str
) -> None:
    arena.folder.switch_off("operators-again")
    arena.folder.arm(point)
    try:
        record = await record_of(arena, f"done-{point.replace('.', '-')}", undisturbed)
    finally:
        arena.folder.switch_on("operators-again")
    assert "ends_in_the_same_weights" in findings(record)
