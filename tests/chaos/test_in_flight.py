"""Weights that change amid requests, while explorer and trainer die at each step of the change."""

from collections.abc import Sequence

import pytest

from tests.chaos.arena import Arena
from tests.chaos.crash import DEATHS
from tests.chaos.shared_arena import ON_IT
from tests.chaos.varieties import VARIETIES, Play, Played

pytestmark = [ON_IT, pytest.mark.timeout(3000)]

END_SECONDS = 400.0
AMID_A_SWAP = (
    "explorer.engine-paused",
    "explorer.swap-loaded",
    "explorer.swap-resumed",
    "explorer.engine-swapped",
)
BESIDE_A_SWAP = ("rank.weights-unsealed", "rank.weights-written", "rank.weights-announced")
NUM_SWAPS = 1000


async def played(
    arena: Arena,
    name: str,
    points: Sequence[str] = (),
    *,
    num_steps: int = 8,
    end_seconds: float = END_SECONDS,
) -> Played:
    """What came of a run in which a process died at each point."""
    num_before = len(list(arena.folder.read(DEATHS)))
    for point in points:
        arena.folder.arm(point)
    play = Play(arena=arena, name=name, end_seconds=end_seconds, num_steps=num_steps)
    found = await VARIETIES["in_flight"](play)
    assert len(list(arena.folder.read(DEATHS))) - num_before == len(points)
    return found


async def test_whoever_dies_amid_a_change_each_token_knows_its_weights(arena: Arena) -> None:
    points = (*AMID_A_SWAP, *BESIDE_A_SWAP)
    assert (await played(arena, "in-flight", points, num_steps=16)).found == {}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "protection", ["requests-paused", "counted-behind-the-fence", "computed-again"]
)
async def test_without_its_protection_a_token_lies(arena: Arena, protection: str) -> None:
    arena.folder.switch_off(protection)
    try:
        weak = await played(arena, f"in-flight-without-{protection}")
    finally:
        arena.folder.switch_on(protection)
    assert weak.found.keys() == {"tokens_are_their_spans"}


@pytest.mark.thorough
async def test_over_a_thousand_changes_and_many_deaths_each_token_knows_its_weights(
    arena: Arena,
) -> None:
    num_swaps = 0
    for number in range(NUM_SWAPS):
        points = (AMID_A_SWAP[number % 4], BESIDE_A_SWAP[number % 3])
        name = f"in-flight-{number}"
        found = await played(arena, name, points, num_steps=64, end_seconds=1000.0)
        assert found.found == {}
        num_swaps += found.num_swaps
        if num_swaps >= NUM_SWAPS:
            return
