"""Each selector draws what it would have drawn, wherever the buffer dies between draw and grant."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from pydantic import JsonValue

from tests.chaos.arena import Arena
from tests.chaos.checks import findings
from tests.chaos.crash import DEATHS
from tests.chaos.shared_arena import ON_IT
from tests.chaos.snapshot import Snapshot
from tests.support.model_free.experiment import final_weights

NUM_STEPS = 4
END_SECONDS = 200.0
"""Three deaths take a while on a busy machine."""
pytestmark = [ON_IT, pytest.mark.timeout(500)]


@dataclass(frozen=True, slots=True)
class Kind:
    """A selector, where the buffer dies, and what of it may be switched off."""

    selector: Mapping[str, JsonValue]
    points: tuple[str, ...]
    protection: str


KINDS = {
    "random": Kind(
        {"selector_type": "random"},
        ("buffer.tasks-drawn", "buffer.lease-granted"),
        "chance-from-seeds",
    ),
    "shuffle": Kind(
        {"selector_type": "shuffle"},
        ("buffer.tasks-drawn", "buffer.lease-granted"),
        "chance-from-seeds",
    ),
    "easy2hard": Kind(
        {"selector_type": "offline_easy2hard", "feature_keys": ["strong"]},
        ("buffer.ranking-kept", "buffer.tasks-drawn", "buffer.lease-granted"),
        "ranking-kept",
    ),
}


async def record_of(arena: Arena, name: str, kind: Kind, expected: str = "") -> Snapshot:
    ended = await arena.run(
        name,
        num_steps=NUM_STEPS,
        end_seconds=END_SECONDS,
        buffer={"explorer_input": {"taskset": {"data_selector": dict(kind.selector)}}},
    )
    return arena.snapshot(ended, expected or final_weights(ended))


ONE_OF_THEM = [
    name if name == "easy2hard" else pytest.param(name, marks=pytest.mark.thorough)
    for name in KINDS
]


@pytest.mark.parametrize("name", ONE_OF_THEM)
async def test_deaths_change_no_draw_and_a_lost_state_is_found(arena: Arena, name: str) -> None:
    kind = KINDS[name]
    undisturbed = await record_of(arena, f"{name}-undisturbed", kind)
    assert findings(undisturbed) == {}
    known = len(list(arena.folder.read(DEATHS)))
    for point in kind.points:
        arena.folder.arm(point)
    struck = await record_of(arena, f"{name}-struck", kind, undisturbed.weights)
    assert findings(struck) == {}
    assert len(list(arena.folder.read(DEATHS))) - known == len(kind.points)
    # A buffer that lives on may remember an order that it would not make again.
    arena.folder.arm("buffer.tasks-drawn")
    arena.folder.switch_off(kind.protection)
    try:
        weak = await record_of(arena, f"{name}-weak", kind, undisturbed.weights)
    finally:
        arena.folder.switch_on(kind.protection)
    assert "ends_in_the_same_weights" in findings(weak)
