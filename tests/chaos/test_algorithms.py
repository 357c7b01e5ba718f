"""Algorithms that copy rows, bring rows of data or let rows grow old lose and repeat none either.

Each dies in the midst of a batch and after a step, is checked, and is checked again with a
protection off: what then happens to its rows must be found.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
DIES = ("buffer.batch-recorded", "rank.step-reported", "buffer.groups-shaped")
pytestmark = [ON_IT, pytest.mark.timeout(500)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """An algorithm, and what of its record shows that it did what it is here for."""

    algorithm: Mapping[str, JsonValue]
    buffer: Mapping[str, JsonValue] = field(default_factory=dict)

    def count(self, record: Snapshot) -> int:
        """Rows of data, copies, or rows that grew too old."""
        if record.stage.num_expert_rows:
            return sum(len(batch.data) for batch in record.batches)
        reasons = [one.reason for one in record.samples if one.state == "filtered"]
        if "max_staleness" in str(self.algorithm):
            return sum("max_staleness" in reason for reason in reasons)
        return sum(one.is_replaced for one in record.samples)


KINDS = {
    "mix": Kind(
        algorithm={"algorithm_type": "mix", "sample_strategy_args": {"expert_data_ratio": 0.25}},
        buffer={"batch_size": 3, "train_batch_size": 8},
    ),
    "copies": Kind(
        algorithm={
            "algorithm_type": "grpo",
            "advantage_fn_args": {"std_threshold": 0.2, "duplicate_experiences": True},
        },
    ),
    "staleness": Kind(
        algorithm={
            "algorithm_type": "grpo",
            "sample_strategy": "staleness_control",
            "sample_strategy_args": {"max_staleness": 0},
        },
        buffer={"train_batch_size": 4},
    ),
}


async def record_of(arena: Arena, name: str, kind: Kind, expected: str = "") -> Snapshot:
    ended = await arena.run(
        name,
        num_steps=NUM_STEPS,
        end_seconds=END_SECONDS,
        algorithm=kind.algorithm,
        buffer=kind.buffer,
    )
    return arena.snapshot(ended, expected or final_weights(ended))


ONE_OF_THEM = [
    name if name == "staleness" else pytest.param(name, marks=pytest.mark.thorough)
    for name in KINDS
]


@pytest.mark.parametrize("name", ONE_OF_THEM)
async def test_nothing_is_found_undisturbed_and_through_deaths(arena: Arena, name: str) -> None:
    kind = KINDS[name]
    undisturbed = await record_of(arena, f"{name}-undisturbed", kind)
    assert findings(undisturbed) == {}
    assert kind.count(undisturbed) > 0
    known = len(list(arena.folder.read(DEATHS)))
    for point in DIES:
        arena.folder.arm(point)
    struck = await record_of(arena, f"{name}-struck", kind, undisturbed.weights)
    assert findings(struck) == {}
    assert kind.count(struck) == kind.count(undisturbed)
    assert len(list(arena.folder.read(DEATHS))) - known == len(DIES)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "off", "check", "dies"),
    [
        ("mix", "one-transaction", "nothing_is_lost", "buffer.batch-recorded"),
        ("copies", "batch-kept", "batches_never_change", ""),
        ("staleness", "one-batch-a-row", "no_row_twice", ""),
    ],
)
async def test_without_its_protection_each_check_finds_something(
    arena: Arena, name: str, off: str, check: str, dies: str
) -> None:
    """Each check on one kind of rows: it does not look at what they are."""
    arena.folder.switch_off(off)
    if dies:
        arena.folder.arm(dies)
    try:
        record = await record_of(arena, f"{name}-{off}", KINDS[name])
    finally:
        arena.folder.switch_on(off)
    assert check in findings(record)
