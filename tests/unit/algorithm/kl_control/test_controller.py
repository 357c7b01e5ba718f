"""The coefficient follows what is observed, and nothing else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verl.trainer.ppo.core_algos import AdaptiveKLController

from tests.unit.subtests import as_subtests
from trinity.algorithm.kl.controller import KlController, kl_controller
from trinity.errors import UserError

observations = st.lists(st.tuples(st.floats(-5, 50), st.integers(1, 300)), min_size=1, max_size=20)


def adaptive(**changes: float) -> KlController:
    args: dict[str, float] = {"kl_coef": 0.2, "target_kl": 6.0, "horizon": 1000}
    return kl_controller(adaptive=True, **(args | changes))


@given(observed=observations)
def test_the_adaptive_coefficient_is_that_of_verl(observed: list[tuple[float, int]]) -> None:
    ours, theirs = adaptive(), AdaptiveKLController(0.2, 6.0, 1000)
    for kl, batch_size in observed:
        ours = ours.updated(kl=kl, batch_size=batch_size)
        theirs.update(kl, batch_size)
    assert ours.coef == pytest.approx(theirs.value, rel=1e-12)


@given(observed=observations, cut=st.integers(0, 20))
def test_going_on_from_a_checkpoint_gives_the_same_coefficients(
    observed: list[tuple[float, int]], cut: int
) -> None:
    straight = resumed = adaptive()
    for at, (kl, batch_size) in enumerate(observed):
        if at == cut:
            resumed = adaptive().from_state(json.loads(json.dumps(resumed.state())))
        straight = straight.updated(kl=kl, batch_size=batch_size)
        resumed = resumed.updated(kl=kl, batch_size=batch_size)
        assert resumed == straight


@given(kl=st.floats(allow_nan=True, allow_infinity=True), batch_size=st.integers(1, 10**9))
def test_the_adaptive_coefficient_stays_a_number_above_zero(kl: float, batch_size: int) -> None:
    coef = adaptive(horizon=10).updated(kl=kl, batch_size=batch_size).coef
    assert 0.2 * 0.8 <= coef <= 0.2 * 1.2


def test_a_fixed_coefficient_is_what_the_configuration_says() -> None:
    controller = kl_controller(kl_coef=0.05)
    assert controller.updated(kl=100.0, batch_size=256) == controller
    assert controller.from_state({"coef": 7.0}) == controller


def test_a_fixed_coefficient_has_no_use_for_a_target() -> None:
    assert kl_controller(kl_coef=0.05, target_kl=1.0, horizon=1) == KlController(coef=0.05)


@as_subtests(
    ("args", "text"),
    [
        ({"adaptive": True}, "needs target_kl; give one"),
        ({"adaptive": True, "target_kl": 1.0}, "needs horizon; give one"),
        ({"adaptive": True, "horizon": 10}, "needs target_kl; give one"),
        ({"adaptive": True, "target_kl": 0.0, "horizon": 10}, "target_kl above 0; it is 0.0"),
        ({"adaptive": True, "target_kl": 1.0, "horizon": -1}, "horizon above 0; it is -1"),
        ({"adaptive": True, "target_kl": 1.0, "horizon": 9, "kl_coef": 0.0}, "kl_coef above 0"),
        ({"kl_coef": -0.1}, "kl_coef is -0.1"),
        ({"kl_coef": float("nan")}, "kl_coef is nan"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_step(
    args: dict[str, float], text: str
) -> None:
    with pytest.raises(UserError, match=text):
        kl_controller(**args)  # type: ignore[arg-type]
