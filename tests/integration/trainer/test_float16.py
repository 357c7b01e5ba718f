"""Training in float16: a scale of the losses keeps small gradients, and large ones are skipped."""

from pathlib import Path

import numpy as np

from tests.integration.trainer.learners import (
    Arrays,
    Build,
    assert_same,
    gradients_of,
    stepped,
    weights_of,
)
from tests.unit.trainer.builders import make_plan, random_batch
from trinity.config.plan.stage_plan import StagePlan

BATCH = random_batch(8, seed=3)
SMALL = {"algorithm_type": "grpo", "repeat_times": 8, "kl_loss_fn": "none"}


def plan_of(model: Path, dtype: str) -> StagePlan:
    return make_plan(model, SMALL, {"dtype": dtype})


def far_apart(left: Arrays, right: Arrays) -> float:
    """The largest difference, over the largest gradient."""
    largest = max(float(np.abs(array).max()) for array in left.values())
    return max(float(np.abs(left[name] - right[name]).max()) for name in left) / largest


def test_small_gradients_are_those_of_float32_by_the_scale(learner_of: Build, model: Path) -> None:
    exact = gradients_of(learner_of(plan_of(model, "float32")), BATCH)
    learner = learner_of(plan_of(model, "float16"))
    scale = learner._roles.actor.worker.engine.scaler
    scaled = {name: array / scale.factor for name, array in gradients_of(learner, BATCH).items()}
    assert far_apart(exact, scaled) < 0.02


def test_an_overflow_changes_no_weight_and_halves_the_scale(learner_of: Build, model: Path) -> None:
    learner = learner_of(plan_of(model, "float16"))
    scale = learner._roles.actor.worker.engine.scaler
    before = weights_of(learner)
    scale.factor = 2.0**40
    metrics = stepped(learner, BATCH)
    assert not np.isfinite(metrics["actor/grad_norm"])
    assert metrics["actor/loss_scale"] == 2.0**39
    assert_same(weights_of(learner), before)


def test_a_checkpoint_keeps_the_scale(learner_of: Build, model: Path, tmp_path: Path) -> None:
    learner = learner_of(plan_of(model, "float16"))
    stepped(learner, BATCH)
    learner._roles.actor.worker.engine.scaler.factor = 2.0**10
    learner._roles.actor.save(tmp_path, 1)
    resumed = learner_of(plan_of(model, "float16"))
    resumed._roles.actor.load(tmp_path)
    scale = resumed._roles.actor.worker.engine.scaler
    assert (scale.factor, scale.good_steps) == (2.0**10, 1)
    assert stepped(resumed, BATCH)["actor/loss_scale"] == 2.0**10
    stepped(learner, BATCH)
    assert_same(weights_of(learner), weights_of(resumed))
