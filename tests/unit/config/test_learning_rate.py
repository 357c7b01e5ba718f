"""Schedules are those that transformers has by the same names, and Megatron's WSD."""

import warnings
from itertools import pairwise

import pytest

from tests.unit.config.builders import GRPO, config
from trinity.config.planning import plan_experiment
from trinity.config.schema.choices import AnnealStyle, LearningRateSchedule, ScheduleKind

TOTAL = 40
STEPS = range(1, TOTAL + 1)


def schedule(
    kind: ScheduleKind,
    *,
    warmup: int = 0,
    least: float = 0.0,
    anneal: int = -1,
    style: AnnealStyle = "exponential",
) -> LearningRateSchedule:
    return LearningRateSchedule(
        lr=1.0,
        kind=kind,
        warmup_steps=warmup,
        warmup_ratio=0.0,
        min_ratio=least,
        anneal_steps=anneal,
        anneal_style=style,
    )


def rates(one: LearningRateSchedule) -> list[float]:
    return [one.at(step, TOTAL) for step in STEPS]


def of_transformers(name: str, **arguments: object) -> list[float]:
    """Factors on the rate, by the number of steps done."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from transformers import optimization

        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        made = getattr(optimization, name)(optimizer, **arguments)
    return [made.lr_lambdas[0](step) for step in STEPS]


def test_linear_goes_down_to_the_least_as_transformers_has_it() -> None:
    expected = of_transformers(
        "get_linear_schedule_with_warmup", num_warmup_steps=5, num_training_steps=TOTAL
    )
    assert rates(schedule("linear", warmup=5)) == pytest.approx(expected)
    assert rates(schedule("linear", warmup=5, least=0.2)) == pytest.approx(
        [
            max(0.2 + 0.8 * one, one) if step >= 5 else one
            for step, one in zip(STEPS, expected, strict=True)
        ]
    )


def test_linear_begins_at_lr_without_a_warm_up() -> None:
    found = rates(schedule("linear", least=0.1))
    assert found[0] == 1.0
    assert found[-1] == pytest.approx(0.1)
    steps = {round(before - after, 12) for before, after in pairwise(found)}
    assert len(steps) == 1


def test_inverse_square_root_is_of_the_warm_up_over_the_step() -> None:
    expected = of_transformers("get_inverse_sqrt_schedule", num_warmup_steps=4, timescale=4)
    assert rates(schedule("inverse-square-root", warmup=4)) == pytest.approx(expected)
    bounded = rates(schedule("inverse-square-root", warmup=4, least=0.5))
    assert bounded == pytest.approx(
        [max(one, 0.5) if s >= 4 else one for s, one in zip(STEPS, expected, strict=True)]
    )
    assert schedule("inverse-square-root").at(9, None) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("style", "theirs"), [("linear", "linear"), ("cosine", "cosine"), ("minus_sqrt", "1-sqrt")]
)
def test_wsd_stays_and_goes_down_at_the_end_as_transformers_has_it(
    style: AnnealStyle, theirs: str
) -> None:
    expected = of_transformers(
        "get_wsd_schedule",
        num_warmup_steps=5,
        num_stable_steps=25,
        num_decay_steps=10,
        decay_type=theirs,
        min_lr_ratio=0.1,
    )
    found = rates(schedule("WSD", warmup=5, least=0.1, anneal=10, style=style))
    assert found[4:] == pytest.approx(expected[4:])
    assert found[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])


def test_wsd_halves_as_megatron_does_unless_told_otherwise() -> None:
    found = rates(schedule("WSD", anneal=8, least=0.25))
    assert found[:32] == [1.0] * 32
    assert found[32:] == pytest.approx(
        [0.25 + 0.75 * (2 * 0.5 ** (step / 8) - 1) for step in range(1, 9)]
    )
    assert found[-1] == pytest.approx(0.25)


def test_wsd_goes_down_over_a_tenth_of_the_steps_unless_told_otherwise() -> None:
    found = rates(schedule("WSD"))
    assert found[: TOTAL - TOTAL // 10] == [1.0] * 36
    assert found == sorted(found, reverse=True)
    assert rates(schedule("WSD", anneal=0)) == [1.0] * TOTAL


@pytest.mark.parametrize("kind", ["linear", "WSD", "cosine"])
def test_a_way_down_needs_its_end(kind: ScheduleKind) -> None:
    with pytest.raises(ValueError, match="depends on the number of train steps"):
        schedule(kind).at(1, None)


@pytest.mark.parametrize("kind", ["constant", "cosine", "linear", "inverse-square-root", "WSD"])
def test_steps_beyond_the_end_keep_the_last_ones_rate(kind: ScheduleKind) -> None:
    one = schedule(kind, warmup=3, least=0.05)
    assert one.at(TOTAL + 7, TOTAL) == one.at(TOTAL, TOTAL) > 0


def test_a_warm_up_may_begin_above_zero_as_megatrons() -> None:
    found = schedule("constant", warmup=4).model_copy(update={"warmup_init": 0.2})
    assert rates(found)[:5] == pytest.approx([0.4, 0.6, 0.8, 1.0, 1.0])
    assert rates(schedule("constant", warmup=4))[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine", "inverse-square-root", "WSD"])
def test_steps_of_the_critic_alone_do_not_count_and_the_total_stays(kind: ScheduleKind) -> None:
    plain = schedule(kind, warmup=5, least=0.1)
    later = plain.model_copy(update={"begins_after": 8})
    assert rates(later)[8:] == rates(plain)[:-8]
    assert later.at(9, TOTAL) == pytest.approx(1 / 5)
    assert later.at(TOTAL, TOTAL) == plain.at(TOTAL - 8, TOTAL)


def test_a_plan_counts_the_actors_updates_after_a_critics_warm_up() -> None:
    slow = {"optimizer": {"lr": 1.0, "lr_warmup_steps": 4}, "algorithm_type": "ppo"}
    [with_critic] = plan_experiment(
        config(GRPO, algorithm=slow, trainer={"critic_warmup": 3})
    ).stages
    assert [with_critic.learning_rate(step) for step in range(4, 9)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert plan_experiment(config(GRPO)).stages[0].lr_schedule.begins_after == 0
