"""A stage takes over what a former run left: as if that had gone on, or with fresh optimizers."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.integration.trainer.learners import (
    Build,
    assert_same,
    critic_weights_of,
    stepped,
    weights_of,
)
from tests.unit.trainer.builders import grpo_plan, make_plan, random_batch, save_tiny_model
from trinity.config.plan.start_checkpoint import find_start_checkpoint
from trinity.errors import UserError

if TYPE_CHECKING:
    from services.trainer.collectives import Ranks
    from services.trainer.learner.learner import Learner

NEXT = random_batch(8, seed=3, step=3)


def written(learner: "Learner", ranks: "Ranks", directory: Path) -> Path:
    """The checkpoint after two steps."""
    from services.trainer.checkpoints.checkpoints import CheckpointStore

    store = CheckpointStore(root=directory / "checkpoints", stage="rft", ranks=ranks)
    for step in (1, 2):
        stepped(learner, random_batch(8, seed=step, step=step))
    return store.write(learner, step=2, incarnation=1).path


@pytest.mark.parametrize("is_verls", [False, True])
def test_weights_and_optimizers_go_on_as_in_the_former_run(
    learner_of: Build, model: Path, ranks: "Ranks", tmp_path: Path, is_verls: bool
) -> None:
    from services.trainer.learner.learner import Learner

    plan = make_plan(model, {"algorithm_type": "ppo"})
    former = learner_of(plan)
    path = written(former, ranks, tmp_path)
    if is_verls:  # the same files, in the folders that verl has
        path, ours = tmp_path / "global_step_2", path
        path.mkdir()
        (ours / "critic").rename(path / "critic")
        ours.rename(path / "actor")
    found = find_start_checkpoint(str(path))
    begun = Learner(plan=plan, model_directory=model, ranks=ranks, start_checkpoint=found)
    stepped(former, NEXT)
    stepped(begun, NEXT)
    assert_same(weights_of(begun), weights_of(former))
    assert_same(critic_weights_of(begun), critic_weights_of(former))


@pytest.mark.parametrize("is_verls", [False, True])
def test_an_optimizer_that_is_not_to_be_loaded_begins_anew(
    learner_of: Build, model: Path, ranks: "Ranks", tmp_path: Path, is_verls: bool
) -> None:
    from services.trainer.learner.learner import Learner

    former = learner_of(grpo_plan(model))
    path = written(former, ranks, tmp_path)
    if is_verls:
        path = tmp_path / "global_step_2"
        former._roles.actor.worker.save_checkpoint(str(path / "actor"))
    for contents, num_states in ((["model"], 0), (["model", "optimizer", "extra"], 1)):
        grpo = {"algorithm_type": "grpo", "repeat_times": 8}
        plan = make_plan(model, grpo, {"load_contents": contents})
        found = find_start_checkpoint(str(path))
        begun = Learner(plan=plan, model_directory=model, ranks=ranks, start_checkpoint=found)
        assert_same(weights_of(begun), weights_of(former))
        assert min(len(begun._roles.actor.worker.engine.optimizer.state), 1) == num_states


def test_an_optimizer_that_is_not_there_is_told(
    learner_of: Build,
    model: Path,
    ranks: "Ranks",
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from services.trainer.learner.learner import Learner

    former = learner_of(grpo_plan(model))
    stepped(former, NEXT)
    former._roles.actor.worker.save_checkpoint(str(tmp_path / "actor"))
    (tmp_path / "actor/optim_world_size_1_rank_0.pt").unlink()
    found = find_start_checkpoint(str(tmp_path))
    Learner(plan=grpo_plan(model), model_directory=model, ranks=ranks, start_checkpoint=found)
    assert "the optimizer starts fresh: it was not saved" in caplog.messages


def test_the_reference_stays_the_model(
    learner_of: Build, model: Path, ranks: "Ranks", tmp_path: Path
) -> None:
    from services.trainer.learner.learner import Learner

    plan = grpo_plan(model)
    found = find_start_checkpoint(str(written(learner_of(plan), ranks, tmp_path)))
    begun = Learner(plan=plan, model_directory=model, ranks=ranks, start_checkpoint=found)
    assert stepped(begun, NEXT)["actor/kl_loss"] > 0
    assert stepped(learner_of(plan), NEXT)["actor/kl_loss"] == 0


def test_whole_weights_begin_with_a_fresh_optimizer(
    model: Path, ranks: "Ranks", tmp_path: Path
) -> None:
    from services.trainer.learner.learner import Learner

    plan = grpo_plan(model, kl_loss_fn="none")
    other = save_tiny_model(tmp_path / "v7-1", seed=1)
    found = find_start_checkpoint(str(other))
    begun = Learner(plan=plan, model_directory=model, ranks=ranks, start_checkpoint=found)
    expected = Learner(plan=plan, model_directory=other, ranks=ranks)
    assert_same(weights_of(begun), weights_of(expected))
    for one in (begun, expected):
        stepped(one, NEXT)
    assert_same(weights_of(begun), weights_of(expected))


def test_settings_are_those_of_the_run_that_begins(
    learner_of: Build, model: Path, ranks: "Ranks", tmp_path: Path
) -> None:
    from services.trainer.learner.learner import Learner

    path = written(learner_of(grpo_plan(model)), ranks, tmp_path)
    decaying = grpo_plan(model, optimizer={"lr": 1e-3, "weight_decay": 0.3})
    begun = Learner(
        plan=decaying,
        model_directory=model,
        ranks=ranks,
        start_checkpoint=find_start_checkpoint(str(path)),
    )
    (group,) = begun._roles.actor.worker.engine.optimizer.param_groups
    assert group["weight_decay"] == 0.3


def test_an_optimizer_of_another_kind_begins_anew(
    learner_of: Build, model: Path, ranks: "Ranks", tmp_path: Path
) -> None:
    from services.trainer.learner.learner import Learner

    former = learner_of(grpo_plan(model))
    path = written(former, ranks, tmp_path)
    sgd = grpo_plan(model, optimizer={"lr": 1e-3, "optimizer_type": "sgd"})
    begun = Learner(
        plan=sgd,
        model_directory=model,
        ranks=ranks,
        start_checkpoint=find_start_checkpoint(str(path)),
    )
    assert_same(weights_of(begun), weights_of(former))
    assert np.isfinite(stepped(begun, NEXT)["actor/grad_norm"])


def test_a_checkpoint_of_another_model_is_refused_in_a_sentence(
    model: Path, ranks: "Ranks", tmp_path: Path
) -> None:
    from services.trainer.learner.learner import Learner

    other = save_tiny_model(tmp_path / "other", num_layers=1)
    path = written(
        Learner(plan=grpo_plan(other), model_directory=other, ranks=ranks), ranks, tmp_path
    )
    with pytest.raises(UserError, match=r"`trainer\.resume_from_path`: .* cannot be loaded"):
        Learner(
            plan=grpo_plan(model),
            model_directory=model,
            ranks=ranks,
            start_checkpoint=find_start_checkpoint(str(path)),
        )
