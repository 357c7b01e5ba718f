"""When the next explore step may begin."""

import pytest

from services.buffer.domain.admission import (
    RowLoad,
    can_open_after,
    check_credit,
    check_newer_weights,
    check_step_order,
    version_to_open,
)
from tests.unit.buffer.builders import plan, stage
from trinity.config.plan.rollouts_ahead import credit_rows, explore_steps_ahead, largest_lag


def opened_with(published: int, **sizes: int) -> int:
    """Explore steps that open if the trainer has consumed what it trained on."""
    own = plan(**sizes)  # type: ignore[arg-type]
    step = 0
    while True:
        rows = max(0, step * own.rows_per_explore_step - published * own.train_batch_size)
        load = RowLoad(num_outstanding=rows, num_ready=0)
        now = stage(own, explore_step=step, published=published)
        if check_step_order(now) or check_credit(now, load):
            return step
        step += 1


@pytest.mark.parametrize(
    ("sizes", "steps"),
    [
        ({}, [1, 2, 3, 4]),
        ({"sync_offset": 1}, [2, 3, 4, 5]),
        ({"sync_interval": 2}, [2, 2, 4, 4]),
        ({"train_batch_size": 4}, [1, 1, 2, 2]),
        ({"train_batch_size": 16}, [2, 4, 6, 8]),
    ],
)
def test_steps_open_as_their_weights_are_published(sizes: dict[str, int], steps: list[int]) -> None:
    interval = sizes.get("sync_interval", 1)
    published = [version // interval * interval for version in range(4)]
    assert [opened_with(version, **sizes) for version in published] == steps


def test_rows_of_data_in_a_batch_take_no_credit() -> None:
    mixed = plan(train_batch_size=16, expert_data_ratio=0.5, sync_offset=1)
    assert credit_rows(mixed) == credit_rows(plan(sync_offset=1))


def test_fully_async_counts_explore_steps_on_their_way() -> None:
    own = plan(sync_offset=1)
    sync = own.config.synchronizer.model_copy(update={"sync_style": "fully_async"})
    config = own.config.model_copy(update={"synchronizer": sync})
    changed = own.model_copy(update={"config": config})
    assert explore_steps_ahead(changed) == config.explorer.max_inflight_batches == 2
    assert credit_rows(changed) == own.num_rollout_rows + 2 * own.rows_per_explore_step
    assert largest_lag(changed) == 1 + 3


def test_credit_never_stands_in_the_way_of_steps_whose_weights_are_there() -> None:
    for offset in range(4):
        for interval in (1, 2, 3):
            for size, ratio in ((3, None), (8, None), (20, None), (20, 0.3), (30, 0.5)):
                own = plan(
                    sync_offset=offset,
                    sync_interval=interval,
                    train_batch_size=size,
                    expert_data_ratio=ratio,
                )
                for step in range(1, 11):
                    needed = own.required_version(step)
                    rows = step * own.rows_per_explore_step - needed * own.num_rollout_rows
                    assert rows <= credit_rows(own)


def test_no_step_opens_without_weights_after_the_last_or_when_training_is_over() -> None:
    nothing = check_step_order(stage(published=None))
    assert nothing is not None and not nothing.is_final
    last = check_step_order(stage(explore_step=10, published=99))
    assert last is not None and last.is_final
    over = check_step_order(stage(explore_step=1, published=1, finished_step=1))
    assert over is not None and over.is_final


def test_rows_without_end_hold_the_next_step_back() -> None:
    load = RowLoad(num_outstanding=4, num_ready=30)
    refused = check_credit(stage(explore_step=1, published=1), load)
    assert refused is not None
    assert refused.reason == "explore step 2 waits until the trainer has taken some of 34 rows"


def test_a_step_may_wait_for_weights_that_training_will_give() -> None:
    assert can_open_after(stage(explore_step=1, published=0), train_step=1)
    assert not can_open_after(stage(explore_step=1, published=0), train_step=0)
    assert not can_open_after(stage(explore_step=10), train_step=10)


def test_a_step_opens_once_the_batch_is_recorded_that_gives_its_weights() -> None:
    assert check_step_order(stage(explore_step=1, published=0, recorded_step=0))
    assert check_step_order(stage(explore_step=1, published=0, recorded_step=1)) is None
    assert check_step_order(stage(explore_step=2, published=0, recorded_step=1))
    every_second = plan(sync_interval=2)
    assert check_step_order(stage(every_second, explore_step=2, published=0, recorded_step=1))
    assert (
        check_step_order(stage(every_second, explore_step=2, published=0, recorded_step=2)) is None
    )


def test_a_new_life_of_the_trainer_opens_nothing_before_it_has_published() -> None:
    assert check_step_order(stage(explore_step=1, published=None, recorded_step=3))


IDLE = RowLoad(num_outstanding=0, num_ready=0)
FULL = RowLoad(num_outstanding=0, num_ready=8)
BUSY = RowLoad(num_outstanding=1, num_ready=0)


def test_an_explorer_asks_for_weights_once_its_runs_are_done() -> None:
    own = plan(sync_style="explorer_driven", sync_interval=2)
    assert [own.requests_version(step) for step in range(1, 8)] == [
        False,
        False,
        *[True, False] * 2,
        True,
    ]
    waiting = stage(own, explore_step=2, published=0, recorded_step=1)
    busy, idle = check_newer_weights(waiting, BUSY), check_newer_weights(waiting, IDLE)
    assert busy is not None and not busy.wants_version
    assert idle is not None and idle.wants_version
    newer = stage(own, explore_step=2, published=1, recorded_step=1)
    assert check_newer_weights(newer, FULL) is None
    assert version_to_open(newer) == 1


def test_an_explorer_does_not_wait_for_a_trainer_that_waits_for_rows() -> None:
    own = plan(sync_style="explorer_driven")
    nothing_newer = stage(own, explore_step=2, published=1, recorded_step=1, step_version=1)
    assert check_newer_weights(nothing_newer, IDLE) is None
    assert check_newer_weights(nothing_newer, FULL) is not None


def test_nobody_waits_for_weights_that_the_trainer_gives_out_as_it_has_them() -> None:
    own = plan(sync_style="trainer_driven", sync_interval=3)
    ahead = stage(own, explore_step=5, published=0, recorded_step=2)
    assert check_step_order(ahead) is None
    assert check_newer_weights(ahead, FULL) is None
    assert version_to_open(stage(own, explore_step=5, published=3)) == 3
