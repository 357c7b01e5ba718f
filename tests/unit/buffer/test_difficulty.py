"""Beliefs about pass rates: what is learned, and what is chosen by it."""

from collections import Counter

import numpy as np
import pytest

from services.buffer.domain.task_draws import PassRateBeliefs, seeded_generator
from services.buffer.operations.explore_steps import easy_to_hard
from trinity.config.schema.choices import DifficultyConfig

WEAK = np.array([0.9, 0.4, 0.1, 0.0])
STRONG = np.array([1.0, 0.8, 0.5, 0.2])
CONFIG = DifficultyConfig()


def initial(config: DifficultyConfig = CONFIG) -> PassRateBeliefs:
    return PassRateBeliefs.initial(WEAK, STRONG, config.rho)


def learned(
    beliefs: PassRateBeliefs, seen: dict[int, float], config: DifficultyConfig = CONFIG
) -> PassRateBeliefs:
    tasks = np.array(list(seen), dtype=np.int64)
    return beliefs.updated(tasks, np.array(list(seen.values())), config)


def choose(
    beliefs: PassRateBeliefs, count: int, number: int = 0, **arguments: float | bool
) -> list[int]:
    return beliefs.sample_tasks(
        DifficultyConfig.model_validate(arguments), seeded_generator((7, 42), number), count
    )


def test_a_pass_rate_moves_its_task_and_by_the_anchors_all_others() -> None:
    after = learned(initial(), {1: 0.6})
    # Half way from the weak to the strong model at task 1, up to the 1e-6 in the formula.
    assert after.capability == pytest.approx(0.5, abs=1e-5)
    # (1 - 0.2) * 1 + 0.2 = 1; observed: + 0.8 * 0.6 * 16 + 0.2 * 0.6 * 16
    assert after.alpha_N[1] == pytest.approx(1 + 16 * 0.6)
    assert after.beta_N[1] == pytest.approx(1 + 16 * 0.4)
    # not observed: only the share of the prediction, 0.1 + 0.4 * 0.5 = 0.3
    assert after.alpha_N[2] == pytest.approx(1 + 0.2 * 16 * 0.3, abs=1e-4)
    assert after.beta_N[2] == pytest.approx(1 + 0.2 * 16 * 0.7, abs=1e-4)


def test_the_capability_is_a_running_mean() -> None:
    once = learned(initial(), {1: 0.6})
    twice = learned(once, {1: 0.8})
    assert twice.capability == pytest.approx(0.9 * 0.5 + 0.1 * 1.0, abs=1e-5)


def test_rho_halves_when_predictions_are_off_and_only_if_it_may() -> None:
    adaptive = DifficultyConfig(adaptive_rho=True)
    wrong = {0: 0.0, 3: 1.0}
    assert learned(initial(adaptive), wrong, adaptive).rho == 0.1
    assert learned(initial(), wrong).rho == 0.2
    assert learned(initial(adaptive), {1: 0.6, 2: 0.3}, adaptive).rho == 0.2


def test_the_halved_rho_is_the_one_that_predictions_count_by_at_once() -> None:
    config = DifficultyConfig(adaptive_rho=True, m=10, lamb=0.5, rho=0.4)
    anchors = np.array([0.0, 0.0, 0.0]), np.array([1.0, 1.0, 0.5])
    after = learned(PassRateBeliefs.initial(*anchors, config.rho), {0: 1.0, 1: 0.0}, config)
    # Predicted are 0.5, 0.5 and 0.25: off by 0.5, so rho is 0.2.
    assert after.alpha_N[2] == pytest.approx(0.5 + 0.5 + 0.2 * 10 * 0.25, abs=1e-4)
    assert after.beta_N[2] == pytest.approx(0.5 + 0.5 + 0.2 * 10 * 0.75, abs=1e-4)


def test_without_temperature_the_nearest_to_the_target_are_taken() -> None:
    beliefs = learned(initial(), {0: 1.0, 1: 0.7, 2: 0.3, 3: 0.0})
    assert choose(beliefs, 2, tau=0.0) == [0, 1]
    assert choose(beliefs, 2, tau=0.0, target_reward=0.0) == [3, 2]
    assert choose(initial(), 4, tau=0.0) == [0, 1, 2, 3]  # of equals the first rows


def test_the_temperature_mixes_as_the_softmax_says() -> None:
    beliefs = learned(initial(), {0: 1.0, 1: 0.7, 2: 0.3, 3: 0.0})
    rates = beliefs.alpha_N / (beliefs.alpha_N + beliefs.beta_N)
    weights = np.exp(-np.abs(0.5 - rates) / 0.2)
    counts = Counter(
        choose(beliefs, 1, number, tau=0.2, target_reward=0.5)[0] for number in range(4000)
    )
    for task, share in enumerate(weights / weights.sum()):
        assert counts[task] / 4000 == pytest.approx(share, abs=0.03)


def test_a_choice_repeats_no_task_and_follows_its_number() -> None:
    for arguments in ({}, {"do_sample": True}, {"tau": 0.0}):
        chosen = choose(initial(), 4, 3, **arguments)
        assert sorted(chosen) == [0, 1, 2, 3]
        assert chosen == choose(initial(), 4, 3, **arguments)
    assert len({tuple(choose(initial(), 4, number)) for number in range(20)}) > 5
    assert Counter(choose(initial(), 9)).most_common(1)[0][1] == 3


def test_what_a_step_has_taken_is_not_taken_again_while_there_is_more() -> None:
    chance = seeded_generator((7, 42), 0)
    assert initial().sample_tasks(CONFIG, chance, 2, {0, 1}) in ([2, 3], [3, 2])
    assert len(initial().sample_tasks(CONFIG, chance, 2, {0, 1, 2, 3})) == 2


def test_easy_rows_come_first_and_of_equals_the_later_one() -> None:
    first, second = np.array([0.5, 0.9, 0.5, 0.9]), np.array([1.0, 0.0, 2.0, 0.0])
    assert list(easy_to_hard([first])) == [3, 1, 2, 0]
    assert list(easy_to_hard([first, second])) == [3, 1, 2, 0]
    assert list(easy_to_hard([first, -second])) == [3, 1, 0, 2]
