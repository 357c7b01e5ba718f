"""An adapter goes on from its checkpoint on what it was trained on, and on nothing else."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.trainer.learners import Build, assert_same, stepped, weights_of
from tests.integration.trainer.test_adapter import BATCH, KL, lora_plan, trained
from tests.unit.trainer.builders import save_tiny_model
from trinity.errors import UserError

if TYPE_CHECKING:
    from services.trainer.checkpoints.checkpoints import CheckpointStore
    from services.trainer.collectives import Ranks
    from services.trainer.learner.learner import Learner


@pytest.fixture
def store(ranks: "Ranks", tmp_path: Path) -> "CheckpointStore":
    from services.trainer.checkpoints.checkpoints import CheckpointStore

    return CheckpointStore(root=tmp_path / "checkpoints", stage="rft", ranks=ranks)


def test_an_adapter_is_not_resumed_on_another_model_or_scale(
    learner_of: Build,
    ranks: "Ranks",
    model: Path,
    store: "CheckpointStore",
    tmp_path: Path,
) -> None:
    from services.trainer.learner.learner import Learner

    learner = learner_of(lora_plan(model))
    trained(learner, num_steps=1)
    written = store.write(learner, step=1, incarnation=1).path
    other = save_tiny_model(tmp_path / "other", seed=1)
    again = Learner(plan=lora_plan(other), model_directory=other, ranks=ranks)
    for changed in (again, learner_of(lora_plan(model, {"lora_alpha": 16}))):
        changed.load(written)
        with pytest.raises(UserError, match=r"give `model\.model_path`"):
            store.check_adapter_base(changed, written)
    learner.load(written)
    store.check_adapter_base(learner, written)


def rounded_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the product comes out as on another processor."""
    from services.trainer.checkpoints import lora
    from services.trainer.checkpoints.split import merge

    monkeypatch.setattr(
        lora, "merge", lambda whole, up, down, scaling: merge(whole, up, down, scaling * (1 + 1e-6))
    )


def test_an_adapter_is_resumed_where_the_product_is_rounded_otherwise(
    learner_of: Build, model: Path, store: "CheckpointStore", monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_of(lora_plan(model))
    trained(learner)
    before = weights_of(learner)
    written = store.write(learner, step=3, incarnation=1).path
    rounded_otherwise(monkeypatch)
    restored = learner_of(lora_plan(model))
    restored.load(written)
    assert any((weights_of(restored)[name] != array).any() for name, array in before.items())
    store.check_adapter_base(restored, written)


def test_an_adapter_on_a_former_runs_weights_goes_on_from_its_checkpoint(
    ranks: "Ranks", model: Path, store: "CheckpointStore", tmp_path: Path
) -> None:
    from services.trainer.learner.learner import Learner
    from services.trainer.rank.stage import resume_source

    other = save_tiny_model(tmp_path / "v7-1", seed=1)
    plan = lora_plan(model, **KL).model_copy(update={"start_checkpoint": str(other)})

    def life(*, has_checkpoint: bool) -> "Learner":
        former = resume_source(plan, has_checkpoint=has_checkpoint, ranks=ranks)
        return Learner(plan=plan, model_directory=model, ranks=ranks, start_checkpoint=former)

    learner = life(has_checkpoint=False)
    trained(learner)
    written = store.write(learner, step=3, incarnation=1).path
    again = life(has_checkpoint=True)
    again.load(written)
    store.check_adapter_base(again, written)
    assert_same(weights_of(learner), weights_of(again))
    for one in (learner, again):
        stepped(one, BATCH)
    assert_same(weights_of(learner), weights_of(again))
