"""With replay a sample is in the very batches it would be in if nothing died.

Trainer and buffer die in the midst of a batch, after it is composed, when it is received and after
a step; then protections are off, and what happens to the batches must be found.
"""

from collections.abc import Mapping

import pytest
from pydantic import JsonValue

from tests.chaos.arena import Arena
from tests.chaos.checks import findings
from tests.chaos.crash import DEATHS
from tests.chaos.shared_arena import ON_IT
from tests.chaos.snapshot import Snapshot
from tests.support.model_free.experiment import final_weights

NUM_STEPS = 5
END_SECONDS = 200.0
"""Four deaths take a while on a busy machine."""
DIES = (
    "buffer.batch-recorded",
    "buffer.batch-composed",
    "rank.batch-received",
    "rank.step-reported",
)
UNLIMITED: Mapping[str, JsonValue] = {}
LIMITED: Mapping[str, JsonValue] = {
    "priority_fn": "decay_limit_randomization",
    "priority_fn_args": {"decay": 0.5, "use_count_limit": 2},
}
pytestmark = [ON_IT, pytest.mark.timeout(500)]


async def record_of(
    arena: Arena,
    name: str,
    expected: str = "",
    *,
    sync_offset: int = 0,
    replay: Mapping[str, JsonValue] = UNLIMITED,
) -> Snapshot:
    """Eight samples an explore step, twelve a batch."""
    settings: dict[str, JsonValue] = {"enable": True, "reuse_cooldown_time": 2, **replay}
    ended = await arena.run(
        f"replay-{name}",
        num_steps=NUM_STEPS,
        end_seconds=END_SECONDS,
        sync_offset=sync_offset,
        buffer={
            "train_batch_size": 12,
            "trainer_input": {"experience_buffer": {"replay_buffer": settings}},
        },
    )
    return arena.snapshot(ended, expected or final_weights(ended))


def most_uses(record: Snapshot) -> int:
    """Of any sample."""
    trained = [one for batch in record.batches for one in batch.experience_ids]
    return max(map(trained.count, trained))


async def test_batches_are_the_same_whoever_dies(arena: Arena) -> None:
    undisturbed = await record_of(arena, "undisturbed", replay=LIMITED)
    assert findings(undisturbed) == {}
    assert most_uses(undisturbed) == 2
    known = len(list(arena.folder.read(DEATHS)))
    for point in DIES:
        arena.folder.arm(point)
    struck = await record_of(arena, "struck", undisturbed.weights, replay=LIMITED)
    assert len(list(arena.folder.read(DEATHS))) - known == len(DIES)
    assert findings(struck) == {}
    assert [_rewards(batch.rows) for batch in struck.batches] == [
        _rewards(batch.rows) for batch in undisturbed.batches
    ]


@pytest.mark.thorough
async def test_with_an_offset_samples_rest_as_long_whoever_dies(arena: Arena) -> None:
    for point in DIES[:2]:
        arena.folder.arm(point)
    record = await record_of(arena, "offset", sync_offset=1)
    found = findings(record)
    assert found.keys() <= {"ends_in_the_same_weights"}
    assert most_uses(record) > 1


@pytest.mark.parametrize(
    ("off", "check", "dies"),
    [
        ("rest", "trained_as_asked", ""),
        pytest.param("batch-kept", "batches_never_change", "", marks=pytest.mark.thorough),
        pytest.param(
            "one-transaction",
            "nothing_is_lost",
            "buffer.batch-recorded",
            marks=pytest.mark.thorough,
        ),
    ],
)
async def test_without_its_protection_each_check_finds_something(
    arena: Arena, off: str, check: str, dies: str
) -> None:
    arena.folder.switch_off(off)
    if dies:
        arena.folder.arm(dies)
    try:
        record = await record_of(arena, f"without-{off}")
    finally:
        arena.folder.switch_on(off)
    assert check in findings(record)


def _rewards(rows: tuple[tuple[str, float], ...]) -> list[float]:
    """Samples have other ids in another experiment, and the same advantages."""
    return [advantage for _, advantage in rows]
