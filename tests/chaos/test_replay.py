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


async def test_without_the_rest_between_uses_the_check_finds_something(arena: Arena) -> None:
    arena.folder.switch_off("rest")
    try:
        record = await record_of(arena, "without-rest")
    finally:
        arena.folder.switch_on("rest")
    assert "trained_as_asked" in findings(record)


def _rewards(rows: tuple[tuple[str, float], ...]) -> list[float]:
    """Samples have other ids in another experiment, and the same advantages."""
    return [advantage for _, advantage in rows]
