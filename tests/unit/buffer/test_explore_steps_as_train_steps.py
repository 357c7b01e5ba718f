"""Decisions of the buffer where a train step is one explore step."""

import pytest

from services.buffer.domain.admission import (
    RowLoad,
    check_credit,
    check_newer_weights,
    check_step_order,
)
from services.buffer.domain.batches import (
    BatchDecision,
    BatchEnd,
    BatchWait,
    ComposeNow,
    MeasuredRow,
    RefillTasks,
    batch_metrics,
    decide_explore_step,
)
from services.buffer.domain.stage import Stage, first_unbatched_step, refilled_explore_step
from services.buffer.servicer.stage_calls import parse_and_check_plan
from tests.unit.buffer.builders import plan, stage
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import InvalidRequest

MANY = RowLoad(num_outstanding=0, num_ready=10_000)


def whole_steps(
    *, sync_interval: int = 1, sync_offset: int = 0, sync_style: str = "fixed"
) -> StagePlan:
    """Ten explore steps of eight runs, and batches that would hold three of them."""
    own = plan(
        train_batch_size=24,
        sync_interval=sync_interval,
        sync_offset=sync_offset,
        sync_style=sync_style,
    )
    return own.with_train_step("explore_step")


def decided(
    own: Stage, num_runs: int, *, refill_rounds: int = 0, next_step_wait: str = ""
) -> BatchDecision:
    return decide_explore_step(
        own, 1, num_runs=num_runs, refill_rounds=refill_rounds, next_step_wait=next_step_wait
    )


def test_an_explore_step_is_short_of_runs_and_not_of_samples() -> None:
    own = stage(whole_steps())
    assert decided(own, 8) == ComposeNow()
    assert decided(own, 5) == RefillTasks(2, 1)
    assert decided(own, 5, refill_rounds=3) == ComposeNow()
    nothing = decided(own, 0, refill_rounds=3)
    assert isinstance(nothing, BatchEnd) and nothing.state == "failed"


def test_further_tasks_are_drawn_after_those_of_the_steps_that_may_open() -> None:
    """Else a draw would depend on who was faster."""
    own = stage(whole_steps(sync_interval=2), explore_step=1)
    assert decided(own, 5, next_step_wait="explore step 2") == BatchWait("explore step 2")
    assert decided(own, 8, next_step_wait="explore step 2") == ComposeNow()


def test_there_are_as_many_train_steps_as_explore_steps() -> None:
    own = stage(whole_steps(), recorded_step=4)
    assert (own.total_train_steps, own.total_explore_steps) == (10, 10)
    assert first_unbatched_step(own) == 5
    assert refilled_explore_step(own, 3) == 3
    assert refilled_explore_step(stage(explore_step=7), 3) == 7


@pytest.mark.parametrize("sync_style", ["fixed", "trainer_driven"])
@pytest.mark.parametrize(("interval", "offset"), [(1, 0), (2, 0), (1, 2), (3, 1)])
def test_explorers_run_ahead_by_explore_steps_however_many_samples_these_have(
    sync_style: str, interval: int, offset: int
) -> None:
    own = whole_steps(sync_interval=interval, sync_offset=offset, sync_style=sync_style)
    opened = 0
    while opened < 10:
        now = stage(own, explore_step=opened)
        if check_step_order(now) or check_credit(now, MANY):
            break
        opened += 1
    assert opened == interval + offset + (sync_style != "fixed")


def test_rows_that_wait_hold_explorers_back_where_steps_are_made_of_rows() -> None:
    """The control of the test above."""
    assert check_credit(stage(plan(sync_interval=2)), MANY)


def test_newer_weights_are_waited_for_only_while_there_is_a_batch_to_come() -> None:
    own = whole_steps(sync_style="explorer_driven")
    waits = check_newer_weights(stage(own, explore_step=1), MANY)
    assert waits is not None and waits.wants_version
    trained = stage(own, explore_step=1, recorded_step=1, published=1, step_version=1)
    assert check_newer_weights(trained, MANY) is None


def test_a_batch_says_how_many_runs_and_explore_steps_are_in_it() -> None:
    places = [(1, 0, 0), (1, 0, 0), (1, 0, 1), (2, 0, 0)]
    rows = [
        MeasuredRow(
            explore_step=explore_step,
            position=position,
            run=run,
            reward=1.0,
            response_length=3,
            version_min=0,
            metrics={},
            run_metrics={},
        )
        for explore_step, position, run in places
    ]
    found = batch_metrics(rows, step=2)
    assert (found["sample/num_runs"], found["sample/num_explore_steps"]) == (3, 2)
    assert found["sample/model_version_drift/max"] == 1


def test_a_plan_of_explore_steps_with_expert_rows_is_refused() -> None:
    mixed = plan(train_batch_size=16, expert_data_ratio=0.5)
    parse_and_check_plan(mixed.model_dump_json())
    own = mixed.model_copy(update={"train_step": "explore_step"})
    with pytest.raises(InvalidRequest, match="cannot be combined with"):
        parse_and_check_plan(own.model_dump_json())
