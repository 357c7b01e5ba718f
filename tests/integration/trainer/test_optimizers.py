"""Gradient descent is what its name says, and goes on from a checkpoint bit for bit."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.integration.trainer.learners import (
    RATE,
    Build,
    assert_same,
    critic_weights_of,
    gradients_of,
    stepped,
    weights_of,
)
from tests.unit.trainer.builders import make_plan, random_batch
from trinity.config.plan.stage_plan import StagePlan

if TYPE_CHECKING:
    from services.trainer.collectives import Ranks

BATCH = random_batch(16, seed=5)
DECAY = 0.1
OPTIMIZER = {
    "lr": RATE,
    "optimizer_type": "sgd",
    "weight_decay": DECAY,
    "lr_scheduler_type": "linear",
}


def sgd_plan(model: Path, kind: str = "grpo", **trainer: object) -> StagePlan:
    return make_plan(
        model,
        {"algorithm_type": kind, "repeat_times": 8, "optimizer": OPTIMIZER},
        {"critic": {"optimizer": OPTIMIZER}, **trainer},
    )


def test_a_step_goes_down_the_clipped_gradient_and_the_weights(
    learner_of: Build, model: Path
) -> None:
    learner = learner_of(sgd_plan(model, grad_clip=0.05))
    before = weights_of(learner)
    gradients = gradients_of(learner, BATCH)
    norm = np.sqrt(sum(float((one.astype(np.float64) ** 2).sum()) for one in gradients.values()))
    assert norm > 0.05
    for name, weights in weights_of(learner).items():
        clipped = gradients[f"actor/{name}"] * (0.05 / (norm + 1e-6))
        expected = before[name] - RATE * (clipped + DECAY * before[name])
        np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("kind", ["grpo", "ppo"])
def test_it_goes_on_from_a_checkpoint_bit_for_bit(
    learner_of: Build, model: Path, ranks: "Ranks", tmp_path: Path, kind: str
) -> None:
    from services.trainer.checkpoints.checkpoints import CheckpointStore

    plan = sgd_plan(model, kind)
    rates = [plan.learning_rate(step) for step in (1, 2, 3)]
    assert rates[0] > rates[1] > rates[2]
    learner, restored = learner_of(plan), learner_of(plan)
    store = CheckpointStore(root=tmp_path / "checkpoints", stage="rft", ranks=ranks)
    for step in (1, 2):
        stepped(learner, random_batch(8, seed=step, step=step), rates[step - 1])
    written = store.write(learner, step=2, incarnation=1)
    for one in (learner, restored):
        if one is restored:
            one.load(written.path)
        stepped(one, random_batch(8, seed=3, step=3), rates[2])
    assert_same(weights_of(restored), weights_of(learner))
    if kind == "ppo":
        assert_same(critic_weights_of(restored), critic_weights_of(learner))


def adam_plan(model: Path, **optimizer: object) -> StagePlan:
    own = {"lr": RATE, **optimizer}
    return make_plan(
        model,
        {"algorithm_type": "ppo", "repeat_times": 8, "optimizer": own},
        {"critic": {"optimizer": own}},
    )


def test_the_settings_of_a_plan_act_on_a_checkpoint_of_another(
    learner_of: Build, model: Path, tmp_path: Path
) -> None:
    """PyTorch would restore the decay and the betas of before."""
    before = learner_of(adam_plan(model, weight_decay=0.0))
    stepped(before, random_batch(8, seed=1))
    before.save(tmp_path, 1)
    batch = random_batch(8, seed=2, step=2)
    ended = []
    for settings in ({"weight_decay": 0.0}, {"weight_decay": 0.5}, {"betas": (0.5, 0.9)}):
        learner = learner_of(adam_plan(model, **settings))
        learner.load(tmp_path)
        started = {**weights_of(learner), **critic_weights_of(learner)}
        stepped(learner, batch)
        ended.append({**weights_of(learner), **critic_weights_of(learner)})
    same, decayed, forgetful = ended
    for name, weights in started.items():
        expected = same[name] - RATE * 0.5 * weights
        np.testing.assert_allclose(decayed[name], expected, rtol=1e-5, atol=1e-7, err_msg=name)
    assert all((forgetful[name] != same[name]).any() for name in same)
