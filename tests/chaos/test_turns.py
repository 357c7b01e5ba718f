"""Engine and trainer use one device by turns, and are killed at hand-overs."""

from collections.abc import Sequence

import pytest
from pydantic import JsonValue

from tests.chaos.arena import Arena
from tests.chaos.checks import findings
from tests.chaos.crash import DEATHS
from tests.chaos.shared_arena import ON_IT
from tests.e2e.model_free.test_turns import FEW_SLOW_RUNS, imitating_first
from tests.support.model_free.device import device_folder, events_of
from tests.support.model_free.experiment import experiment_plan, final_weights
from trinity.api.v1 import synchronizer_pb2 as pb

pytestmark = [ON_IT, pytest.mark.timeout(1800), pytest.mark.thorough]

END_SECONDS = 800.0
STAGE: JsonValue = {
    "stage_name": "rft",
    "mode": "colocate",
    "algorithm": {"algorithm_type": "grpo", "repeat_times": 2, "kl_loss_fn": "none"},
}


@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("rank", ("rank.device-wanted", "rank.device-left")),
        ("rank-again", ("rank.device-taken", "rank.device-released")),
        (
            "explorer",
            (
                "explorer.engine-starts",
                "explorer.engine-awake",
                "explorer.engine-tired",
                "explorer.engine-asleep",
            ),
        ),
        ("synchronizer", ("synchronizer.turn-saved", "synchronizer.turn-recorded")),
    ],
)
async def test_whoever_dies_at_a_hand_over_nothing_is_lost_and_the_device_is_free(
    arena: Arena, calm_weights: str, name: str, points: Sequence[str]
) -> None:
    num_before = len(list(arena.folder.read(DEATHS)))
    for point in points:
        arena.folder.arm(point)
    plan = experiment_plan(arena.root / f"turns-{name}", name=f"turns-{name}", stages=[STAGE])
    experiment = await arena.run_plan(plan, end_seconds=END_SECONDS)
    assert experiment.state == pb.EXPERIMENT_STATE_FINISHED, experiment.reason
    assert len(list(arena.folder.read(DEATHS))) - num_before == len(points)
    assert final_weights(experiment) == calm_weights
    assert findings(arena.snapshot(experiment, final_weights(experiment))) == {}
    events = events_of(device_folder(plan.stages[0].model_path))
    assert {event.what for event in events} == {"awake", "asleep"}, "never both"


async def test_whoever_dies_while_unfinished_runs_sleep_nothing_is_lost(arena: Arena) -> None:
    """Runs of the explorer that dies are made again; those of a rank's turn go on after it."""
    points = (
        *("explorer.engine-tired", "explorer.engine-asleep", "explorer.engine-awake"),
        *("rank.device-taken", "rank.device-left"),
    )
    num_before = len(list(arena.folder.read(DEATHS)))
    for point in points:
        arena.folder.arm(point)
    plan = experiment_plan(
        arena.root / "unfinished",
        name="unfinished",
        stages=[STAGE],
        synchronizer={"sync_offset": 1},
        explorer=FEW_SLOW_RUNS,
    )
    experiment = await arena.run_plan(plan, end_seconds=END_SECONDS)
    assert experiment.state == pb.EXPERIMENT_STATE_FINISHED, experiment.reason
    assert len(list(arena.folder.read(DEATHS))) - num_before == len(points)
    assert findings(arena.snapshot(experiment, final_weights(experiment))) == {}
    events = events_of(device_folder(plan.stages[0].model_path))
    assert {event.what for event in events} == {"awake", "asleep", "kept"}, "never both"


async def test_a_rank_that_dies_while_it_keeps_the_device_leaves_it_to_the_engine(
    arena: Arena,
) -> None:
    """In a stage of imitation no engine waits, and the rank stays there between steps."""
    calm = imitating_first(arena.root / "kept-calm", "kept-calm", "both")
    expected = await arena.run_plan(calm, end_seconds=END_SECONDS)
    num_before = len(list(arena.folder.read(DEATHS)))
    arena.folder.arm("rank.device-kept")
    plan = imitating_first(arena.root / "kept", "kept", "colocate")
    experiment = await arena.run_plan(plan, end_seconds=END_SECONDS)
    assert experiment.state == pb.EXPERIMENT_STATE_FINISHED, experiment.reason
    assert len(list(arena.folder.read(DEATHS))) - num_before == 1
    assert final_weights(experiment) == final_weights(expected)
    events = events_of(device_folder(plan.stages[0].model_path))
    assert {event.what for event in events} == {"awake", "asleep"}, "never both"
