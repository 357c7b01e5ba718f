"""A steered coefficient follows the divergence, however the user has losses added up."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from services.trainer.types import TrainBatch
from tests.integration.trainer.learners import stepped
from tests.unit.trainer.builders import grpo_plan, random_batch, save_tiny_model
from trinity.config.plan.start_checkpoint import find_start_checkpoint

if TYPE_CHECKING:
    from services.trainer.collectives import Ranks
    from services.trainer.learner.learner import Learner

Begin = Callable[..., "Learner"]
BATCH = random_batch(16, seed=5)
COEF = 0.1


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture
def away(ranks: "Ranks", model: Path, other: Path) -> Begin:
    """Learners whose policy begins away from its reference."""
    from services.trainer.learner.learner import Learner

    def build(loss_agg_mode: str, target_kl: float) -> Learner:
        steered = {"kl_coef": COEF, "adaptive": True, "target_kl": target_kl, "horizon": 80}
        plan = grpo_plan(
            model, loss_agg_mode=loss_agg_mode, kl_loss_fn="k2", kl_loss_fn_args=steered
        )
        former = find_start_checkpoint(str(other))
        return Learner(plan=plan, model_directory=model, ranks=ranks, start_checkpoint=former)

    return build


def next_coefficient(learner: "Learner", batch: TrainBatch) -> float:
    stepped(learner, batch)
    return learner._kl_coefficients.loss.coef


@pytest.fixture
def target(away: Begin) -> float:
    """Close to what is observed, so that no correction is cut off."""
    return stepped(away("token-mean", 1.0), BATCH)["actor/kl"] / 1.1


@pytest.mark.parametrize(
    "mode",
    [
        "token-mean",
        "token-sum",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "seq-mean-token-sum-norm",
    ],
)
def test_the_coefficient_does_not_depend_on_how_losses_are_added_up(
    away: Begin, target: float, mode: str
) -> None:
    expected = COEF * (1.0 + 0.1 * len(BATCH.rows) / 80)
    assert next_coefficient(away(mode, target), BATCH) == pytest.approx(expected, rel=1e-6)


def test_the_coefficient_does_not_depend_on_the_weights_of_rows(away: Begin, target: float) -> None:
    light = replace(BATCH, rows=[replace(row, weight=0.25) for row in BATCH.rows])
    expected = next_coefficient(away("token-mean", target), BATCH)
    assert next_coefficient(away("token-mean", target), light) == pytest.approx(expected, rel=1e-6)
