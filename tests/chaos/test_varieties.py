"""The kinds of experiment that the long campaign adds, each struck once at its own point.

Then the protection is off that the kind is there for, and it must be found.
"""

import pytest

from tests.chaos.arena import Arena
from tests.chaos.crash import DEATHS
from tests.chaos.shared_arena import ON_IT
from tests.chaos.varieties import VARIETIES, Play, Played

END_SECONDS = 200.0
"""Deaths take a while on a busy machine."""
OF_IMAGES = (
    "buffer.image-stored buffer.image-taken buffer.images-used buffer.rows-with-images "
    "buffer.samples-use-images buffer.images-to-go"
)
HALVED = "rank.delta-written explorer.delta-applied"
pytestmark = [ON_IT, pytest.mark.timeout(500)]


async def played(arena: Arena, variety: str, name: str, expected: str = "") -> Played:
    return await VARIETIES[variety](
        Play(arena=arena, name=name, expected=expected, end_seconds=END_SECONDS)
    )


@pytest.mark.parametrize(
    ("variety", "points", "off", "check"),
    [
        ("piped", "buffer.tasks-piped", "piped-order", "ends_in_the_same_weights"),
        ("explored", "buffer.explored-taken", "least-used", "taken_once"),
        ("measured", "buffer.evaluation-closed", "seeds", "measured_the_same"),
        ("seeing", OF_IMAGES, "samples-use-images", "images_are_there"),
        *(
            pytest.param(*of_kind, marks=pytest.mark.thorough)
            for of_kind in (
                ("sink_file", "buffer.sink-written", "sink-position", "sink_has_none_twice"),
                ("halved", HALVED, "difference-verified", "ends_in_the_same_weights"),
                ("queue", "buffer.upload-ended", "upload-count", "queue_is_whole"),
            )
        ),
    ],
)
async def test_it_ends_the_same_whoever_dies_and_a_weakness_is_found(
    arena: Arena, variety: str, points: str, off: str, check: str
) -> None:
    calm = await played(arena, variety, f"{variety}-calm")
    assert calm.found == {}
    known = len(list(arena.folder.read(DEATHS)))
    for point in points.split():
        arena.folder.arm(point)
    struck = await played(arena, variety, f"{variety}-struck", calm.weights)
    assert struck.found == {}
    assert len(list(arena.folder.read(DEATHS))) - known == len(points.split())
    arena.folder.switch_off(off)
    arena.folder.arm(points.split()[0])
    try:
        weak = await played(arena, variety, f"{variety}-weak", calm.weights)
    finally:
        arena.folder.switch_on(off)
        arena.folder.disarm(points.split()[0])
    assert check in weak.found
