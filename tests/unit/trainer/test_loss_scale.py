"""Losses are scaled by a power of two, which falls with an overflow and grows without one."""

import pytest
import torch

from services.trainer.backend.loss_scale import FIRST_FACTOR, GROWTH_INTERVAL, LossScale


def stepped(scale: LossScale, parameter: torch.nn.Parameter, gradient: float) -> float:
    """The parameter after a step of gradient descent on a loss with this gradient."""
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    optimizer.zero_grad()
    scale.scale(parameter.sum() * gradient).backward()
    scale.unscale_(optimizer)
    scale.step(optimizer)
    scale.update()
    return float(parameter.detach())


def test_a_step_is_as_without_a_factor() -> None:
    parameter = torch.nn.Parameter(torch.ones(()))
    assert stepped(LossScale(), parameter, 0.1) == pytest.approx(0.9)


def test_a_step_with_an_overflow_is_left_out_and_halves_the_factor() -> None:
    scale, parameter = LossScale(), torch.nn.Parameter(torch.ones(()))
    assert stepped(scale, parameter, float("inf")) == 1.0
    assert (scale.factor, scale.good_steps, scale.has_overflown) == (FIRST_FACTOR / 2, 0, False)
    assert stepped(scale, parameter, 0.5) == 0.5
    least = LossScale(factor=1.0)
    stepped(least, parameter, float("nan"))
    assert least.factor == 1.0


def test_many_good_steps_double_it_and_a_checkpoint_keeps_it() -> None:
    scale, parameter = LossScale(good_steps=GROWTH_INTERVAL - 2), torch.nn.Parameter(torch.ones(()))
    stepped(scale, parameter, 0.1)
    again = LossScale()
    again.load_state_dict(scale.state_dict())
    for each in (scale, again):
        stepped(each, parameter, 0.1)
        assert (each.factor, each.good_steps) == (FIRST_FACTOR * 2, 0)
