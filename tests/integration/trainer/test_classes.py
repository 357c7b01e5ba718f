"""Losses that are classes of Trinity-RFT train as functions do, through verl's engine."""

from pathlib import Path

from tests.integration.trainer.learners import Build, assert_close, stepped, weights_of
from tests.unit.algorithm.classes import plugin
from tests.unit.trainer.builders import make_plan, random_batch
from trinity.config.plan.stage_plan import StagePlan

BATCH = random_batch(16, seed=5)
HERE = plugin.__name__
WIDE = {"clip_range": 100.0, "clip_ratio_c": 1000.0}


def plan_of(model: Path, **algorithm: object) -> StagePlan:
    return make_plan(model, {"algorithm_type": "grpo", "repeat_times": 8, **algorithm}, {})


def test_a_class_and_a_function_of_one_formula_make_the_same_weights(
    learner_of: Build, model: Path
) -> None:
    """Parts of the batch are as many as the engine likes; the class averages each by itself."""
    function = learner_of(
        plan_of(model, policy_loss_fn="ppo", policy_loss_fn_args=WIDE, kl_loss_fn="none")
    )
    theirs = learner_of(
        plan_of(
            model,
            policy_loss_fn=f"{HERE}.Clipped",
            policy_loss_fn_args={"bound": 20.0},
            kl_loss_fn="none",
        )
    )
    expected, found = stepped(function, BATCH), stepped(theirs, BATCH)
    assert_close(weights_of(theirs), weights_of(function))
    assert abs(found["actor/loss"] - expected["actor/loss"]) < 1e-6
    assert found["actor/ratio"] > 0


def test_divergence_and_entropy_that_are_classes_add_to_the_loss(
    learner_of: Build, model: Path
) -> None:
    usual = stepped(learner_of(plan_of(model, kl_loss_fn="none")), BATCH)
    entropy = f"{HERE}.Entropy"
    found = stepped(
        learner_of(plan_of(model, kl_loss_fn=f"{HERE}.Halved", entropy_loss_fn=entropy)), BATCH
    )
    bonus = usual["actor/entropy"] / 10
    assert abs(found["actor/loss"] - (usual["actor/loss"] - bonus)) < 1e-4, (
        "the first step has no KL"
    )
