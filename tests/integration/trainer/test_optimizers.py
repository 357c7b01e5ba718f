"""The settings of an optimizer arrive in it."""

from typing import Any

import pytest
import torch

from trinity.config.schema.algorithm import OptimizerConfig


def built(**settings: Any) -> torch.optim.Optimizer:
    """The optimizer that verl makes for a single weight."""
    from services.trainer.backend import verl_worker  # readies verl for this machine

    from verl.workers.config.optimizer import build_optimizer  # isort: skip

    config = verl_worker._optimizer_config(OptimizerConfig(**settings), grad_clip=1.0)
    found: torch.optim.Optimizer = build_optimizer([torch.nn.Parameter(torch.ones(1))], config)
    return found


@pytest.mark.parametrize("eps", [1e-8, 1e-5])
def test_adam_adds_its_eps(eps: float) -> None:
    optimizer = built(lr=0.1, eps=eps, betas=(0.8, 0.9), weight_decay=0.0)
    (group,) = optimizer.param_groups
    assert (group["eps"], group["betas"]) == (eps, (0.8, 0.9))


def test_a_large_eps_makes_small_steps() -> None:
    """The first step of Adam is lr g / (|g| + eps)."""
    moved = {}
    for eps in (1e-8, 1.0):
        optimizer = built(lr=0.1, eps=eps, weight_decay=0.0)
        (weight,) = optimizer.param_groups[0]["params"]
        weight.grad = torch.ones(1)
        optimizer.step()
        moved[eps] = 1.0 - float(weight)
    assert moved == {1e-8: pytest.approx(0.1), 1.0: pytest.approx(0.05)}


def test_gradient_descent_has_no_eps() -> None:
    (group,) = built(optimizer_type="sgd", lr=0.1).param_groups
    assert "eps" not in group
