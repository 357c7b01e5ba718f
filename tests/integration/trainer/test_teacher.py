"""A teacher in the trainer draws the policy's distributions to its own."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.integration.trainer.learners import assert_close, gradients_of, stepped
from tests.unit.trainer.builders import make_plan, random_batch, save_tiny_model
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError

if TYPE_CHECKING:
    from services.trainer.collectives import Ranks
    from services.trainer.learner.learner import Learner

ROWS = random_batch(16, seed=5)
BATCH = replace(
    ROWS,
    rows=[replace(row, temperature=0.5 + 0.25 * (row.position % 4)) for row in ROWS.rows],
)
WITHOUT_REWARDS = replace(
    BATCH, rows=[replace(row, advantages=np.zeros_like(row.advantages)) for row in BATCH.rows]
)
"""As the buffer makes them for an algorithm without an advantage."""
COEF = 0.7


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A larger model than the policy."""
    directory = tmp_path_factory.mktemp("teacher") / "model"
    return save_tiny_model(directory, seed=9, num_layers=3, num_kv_heads=1)


def plan_of(
    model: Path, teacher: Path, trainer: dict[str, object] | None = None, **own: object
) -> StagePlan:
    given = {"model_path": str(teacher), "coef": COEF, **own}
    algorithm = {"algorithm_type": "vocabulary_distill", "distillation": given}
    return make_plan(model, algorithm, trainer or {})


def learner_of(plan: StagePlan, model: Path, ranks: "Ranks") -> "Learner":
    from services.trainer.learner.learner import Learner

    return Learner(
        plan=plan,
        model_directory=model,
        ranks=ranks,
        teacher_directory=Path(plan.teacher_model_path or ""),
    )


@pytest.mark.parametrize("top_k", [0, 5])
def test_padding_and_a_chunked_head_change_nothing(
    ranks: "Ranks", model: Path, teacher: Path, top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gradients_of(learner_of(plan_of(model, teacher, top_k=top_k), model, ranks), BATCH)
    monkeypatch.setattr("services.trainer.backend.token_head.CHUNK_TOKENS", 7)
    for trainer in ({"use_remove_padding": False}, {"entropy_checkpointing": True}):
        plan = plan_of(model, teacher, dict(trainer), top_k=top_k)
        assert_close(whole, gradients_of(learner_of(plan, model, ranks), BATCH))


def test_the_policy_comes_nearer_to_its_teacher(ranks: "Ranks", model: Path, teacher: Path) -> None:
    learner = learner_of(plan_of(model, teacher, top_k=8), model, ranks)
    figures = [
        stepped(learner, replace(WITHOUT_REWARDS, step=step), 1e-2)["actor/distillation"]
        for step in range(1, 9)
    ]
    assert figures[-1] < 0.7 * figures[0], figures


def test_rewards_and_a_teacher_add_up(ranks: "Ranks", model: Path, teacher: Path) -> None:
    grpo: dict[str, object] = {"algorithm_type": "grpo", "repeat_times": 8, "kl_loss_fn": "none"}
    given = {"model_path": str(teacher), "coef": COEF}
    sgd: dict[str, object] = {"optimizer": {"lr": 1e-3, "optimizer_type": "sgd"}}
    plans = [
        make_plan(model, {**grpo, **sgd, "distillation": given}, {"grad_clip": 1e9}),
        make_plan(model, {**grpo, **sgd}, {"grad_clip": 1e9}),
        make_plan(
            model,
            {"algorithm_type": "vocabulary_distill", **sgd, "distillation": given},
            {"grad_clip": 1e9},
        ),
    ]
    from services.trainer.learner.learner import Learner

    both, rewards, taught = (
        gradients_of(
            learner_of(plan, model, ranks)
            if plan.teacher_model_path
            else Learner(plan=plan, model_directory=model, ranks=ranks),
            batch,
        )
        for plan, batch in zip(plans, (BATCH, BATCH, WITHOUT_REWARDS), strict=True)
    )
    for name, value in both.items():
        np.testing.assert_allclose(value, rewards[name] + taught[name], atol=1e-6, err_msg=name)


def test_a_teacher_in_another_form_of_rows_is_refused(
    ranks: "Ranks", model: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(model, teacher)
    import services.trainer.learner.verl_calls as module

    answers = iter([True, False])
    monkeypatch.setattr(module, "packs_rows", lambda _: next(answers))
    with pytest.raises(UserError, match="rows in different forms"):
        learner_of(plan, model, ranks)
