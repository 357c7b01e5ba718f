"""A run may take what the configuration says, or a multiple of what runs took."""

from services.explorer.rollout.runner import MIN_SECONDS, RunTimeLimit
from services.explorer.types import RolloutKind
from tests.unit.explorer.builders import build_assignment
from trinity.config.schema.explorer import ExplorerConfig

EVALUATION = build_assignment(kind=RolloutKind.EVAL)


def limit_of(*, ratio: float = 3.0, warmup: int = 1, enable: bool = True) -> RunTimeLimit:
    dynamic = {"enable": enable, "ratio": ratio, "warmup_min_steps": warmup}
    config = {"max_timeout": 100.0, "dynamic_timeout": dynamic}
    return RunTimeLimit(ExplorerConfig.model_validate(config))


def after(limit: RunTimeLimit, *runs: tuple[int, float]) -> float:
    for step, seconds in runs:
        limit.record(build_assignment(explore_step=step), seconds)
    return limit.seconds_for(build_assignment(explore_step=9))


def test_the_limit_is_a_multiple_of_the_mean_once_a_step_is_over() -> None:
    assert after(limit_of(), (1, 4.0), (1, 8.0)) == 100.0
    assert after(limit_of(), (1, 4.0), (1, 8.0), (2, 6.0)) == 18.0
    assert after(limit_of(warmup=2), (1, 4.0), (2, 4.0)) == 100.0
    assert after(limit_of(ratio=1.5), (1, 4.0), (2, 4.0)) == 6.0


def test_it_is_never_above_what_the_configuration_says_nor_below_a_second() -> None:
    assert after(limit_of(ratio=50.0), (1, 4.0), (2, 4.0)) == 100.0
    assert after(limit_of(), (1, 0.01), (2, 0.01)) == MIN_SECONDS


def test_evaluations_are_not_timed_and_keep_their_time() -> None:
    limit = limit_of()
    limit.record(EVALUATION, 0.5)
    assert after(limit, (1, 4.0), (2, 4.0)) == 12.0
    assert limit.seconds_for(EVALUATION) == 100.0


def test_without_the_switch_the_limit_stays() -> None:
    assert after(limit_of(enable=False), (1, 4.0), (2, 4.0)) == 100.0
