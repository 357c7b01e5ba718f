"""A checkpoint is whole or it is not there, and training goes on from it as if nothing had been."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
import torch

from services.trainer.checkpoints.weights import ModelFiles
from tests.integration.trainer.learners import assert_same, critic_weights_of, state_of, stepped
from tests.unit.trainer.builders import grpo_plan, make_plan, random_batch
from tests.unit.trainer.test_gathered import Weights
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import ManifestError
from trinity.weights.manifest import verify

if TYPE_CHECKING:
    from services.trainer.checkpoints.checkpoints import CheckpointStore
    from services.trainer.checkpoints.weights import WeightsStore
    from services.trainer.clients import TrainerBufferClient, TrainerSynchronizerClient
    from services.trainer.collectives import Ranks
    from services.trainer.learner.learner import Learner

Build = Callable[[StagePlan], "Learner"]


@pytest.fixture
def store(ranks: "Ranks", tmp_path: Path) -> "CheckpointStore":
    from services.trainer.checkpoints.checkpoints import CheckpointStore

    return CheckpointStore(root=tmp_path / "checkpoints", stage="rft", ranks=ranks)


@pytest.fixture
def weights(ranks: "Ranks", model: Path, tmp_path: Path) -> "WeightsStore":
    from services.trainer.checkpoints.weights import WeightsStore

    assert ranks.is_first
    files = ModelFiles(copy=tmp_path / "files", dtype="float32", chat_template="{{ 'x' }}")
    files.copy_from(model)
    store = WeightsStore(root=tmp_path / "weights", stage="rft", files=files, dtype=torch.float32)
    store.load_announced([], incarnation=1)
    return store


def hash_of(learner: "Learner") -> bytes:
    from services.trainer.checkpoints.weights import weights_hash

    return weights_hash(dict(learner.weights()))


def test_the_step_after_a_checkpoint_is_the_same_bit_for_bit(
    learner_of: Build, model: Path, store: "CheckpointStore"
) -> None:
    plan = grpo_plan(model)
    learner, restored = learner_of(plan), learner_of(plan)
    for step in (1, 2):
        learner.train_step(random_batch(8, seed=step), 1e-3)
    written = store.write(learner, step=2, incarnation=1)
    learner.train_step(random_batch(8, seed=3), 5e-4)
    verify(written.path, written.manifest_sha256)
    restored.load(written.path)
    restored.train_step(random_batch(8, seed=3), 5e-4)
    assert hash_of(restored) == hash_of(learner)


WEIGHTS_ALONE: dict[str, object] = {"save_contents": ["model"]}


@pytest.mark.parametrize("trainer", [WEIGHTS_ALONE, {"load_contents": ["model"]}, {}])
def test_parts_that_are_not_saved_or_not_loaded_start_fresh(
    learner_of: Build, model: Path, store: "CheckpointStore", trainer: dict[str, object]
) -> None:
    plan = make_plan(model, {"algorithm_type": "grpo", "repeat_times": 8}, trainer)
    learner, restored = learner_of(plan), learner_of(plan)
    learner.train_step(random_batch(8), 1e-3)
    expected = state_of(learner)
    written = store.write(learner, step=1, incarnation=1)
    assert (written.path / "random").exists() is (trainer is not WEIGHTS_ALONE)
    torch.rand(1)
    restored.load(written.path)
    found = state_of(restored)
    is_whole = trainer == {}
    assert hash_of(restored) == hash_of(learner), "weights always go on"
    assert (found.keys() == expected.keys()) is is_whole
    assert any("/optimizer/" in name for name in found) is is_whole
    assert np.array_equal(found["random"], expected["random"]) is is_whole
    restored.train_step(random_batch(8, seed=2), 1e-3)


def test_a_checkpoint_has_a_model_for_other_libraries_if_that_is_wanted(
    learner_of: Build, model: Path, weights: "WeightsStore", ranks: "Ranks", tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    from services.trainer.checkpoints.checkpoints import CheckpointStore

    learner = learner_of(grpo_plan(model))
    learner.train_step(random_batch(8), 1e-3)
    store = CheckpointStore(root=tmp_path / "saved", stage="rft", ranks=ranks, models=weights)
    written = store.write(learner, step=1, incarnation=1)
    verify(written.path, written.manifest_sha256)
    loaded = AutoModelForCausalLM.from_pretrained(written.path / "hf_model").state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in learner.weights())


STEERED = {"kl_coef": 0.1, "adaptive": True, "target_kl": 1e-3, "horizon": 80}


def test_critic_and_steered_coefficients_go_on_bit_for_bit(
    learner_of: Build, model: Path, store: "CheckpointStore"
) -> None:
    algorithm = {
        "algorithm_type": "ppo",
        "kl_penalty_fn": "k2",
        "kl_penalty_fn_args": STEERED,
        "kl_loss_fn": "k2",
        "kl_loss_fn_args": STEERED,
    }
    plan = make_plan(model, algorithm)
    learner, restored = learner_of(plan), learner_of(plan)
    for step in (1, 2):
        stepped(learner, random_batch(8, seed=step, step=step))
    written = store.write(learner, step=2, incarnation=1)
    expected = stepped(learner, random_batch(8, seed=3, step=3))
    verify(written.path, written.manifest_sha256)
    restored.load(written.path)
    found = stepped(restored, random_batch(8, seed=3, step=3))
    assert expected["advantage/kl_coef"] not in (STEERED["kl_coef"], 0.0)
    assert expected["actor/kl_coef"] != STEERED["kl_coef"]
    assert {name: value for name, value in found.items() if not name.startswith("time/")} == {
        name: value for name, value in expected.items() if not name.startswith("time/")
    }
    assert hash_of(restored) == hash_of(learner)
    assert_same(critic_weights_of(restored), critic_weights_of(learner))


def test_a_checkpoint_is_damaged_when_the_critics_part_is(
    learner_of: Build, model: Path, store: "CheckpointStore"
) -> None:
    learner = learner_of(make_plan(model, {"algorithm_type": "ppo"}))
    written = store.write(learner, step=1, incarnation=1)
    (part,) = (written.path / "critic").glob("shards/*.safetensors")
    part.unlink()
    with pytest.raises(ManifestError, match="critic"):
        verify(written.path, written.manifest_sha256)


def test_a_death_while_writing_leaves_no_visible_checkpoint(
    learner_of: Build, model: Path, store: "CheckpointStore", monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_of(grpo_plan(model))
    root = store.write(learner, step=1, incarnation=1).path.parent

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("services.trainer.checkpoints.checkpoints.seal", die)
    with pytest.raises(KeyboardInterrupt):
        store.write(learner, step=2, incarnation=1)
    assert [path.name for path in root.iterdir() if path.suffix == ""] == ["step-1-1"]
    store.remove_uncommitted([root / "step-1-1"], incarnation=2)
    assert [path.name for path in root.iterdir()] == ["step-1-1"]


def test_a_checkpoint_without_a_row_is_removed_by_the_next_life(
    learner_of: Build, model: Path, store: "CheckpointStore"
) -> None:
    written = store.write(learner_of(grpo_plan(model)), step=4, incarnation=1)
    store.remove_uncommitted([], incarnation=2)
    assert not written.path.exists()


class LargeLearner:
    """Its weights are there only while somebody holds them."""

    def __init__(self) -> None:
        self.made = Weights(5)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self.made)

    def split_weights(self) -> None:
        return None

    def adapter_base(self) -> None:
        return None

    def save(self, directory: Path, step: int) -> None:
        pass


def test_a_later_rank_never_holds_all_weights(weights: "WeightsStore", tmp_path: Path) -> None:
    from services.trainer.checkpoints.checkpoints import CheckpointStore
    from services.trainer.checkpoints.publisher import WeightsPublisher
    from services.trainer.collectives import Ranks

    later = Ranks(rank=1, num_ranks=1)
    publisher = WeightsPublisher(
        store=weights,
        buffer=cast("TrainerBufferClient", None),
        synchronizer=cast("TrainerSynchronizerClient", None),
        ranks=later,
        incarnation=1,
    )
    store = CheckpointStore(root=tmp_path / "checkpoints", stage="rft", ranks=later)
    tasks: list[Callable[[Learner], object]] = [
        lambda learner: store.write(learner, step=1, incarnation=1),
        publisher.current_root,
        lambda learner: publisher.write_weights(learner, 1, b""),
    ]
    for task in tasks:
        learner = LargeLearner()
        task(cast("Learner", learner))
        assert learner.made.peak == 1


def test_published_weights_are_a_model_that_transformers_loads(
    learner_of: Build, model: Path, weights: "WeightsStore"
) -> None:
    from transformers import AutoModelForCausalLM

    learner = learner_of(grpo_plan(model))
    learner.train_step(random_batch(8), 1e-3)
    published = weights.write(
        weights.to_published_dtype(learner.weights()), version=1, incarnation=1
    )
    verify(published.path, published.manifest_sha256)
    loaded = AutoModelForCausalLM.from_pretrained(published.path).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in learner.weights())
    assert (published.path / "chat_template.jinja").read_text() == "{{ 'x' }}"


def test_a_flipped_bit_in_published_weights_is_found(
    learner_of: Build, model: Path, weights: "WeightsStore"
) -> None:
    learner = learner_of(grpo_plan(model))
    published = weights.write(
        weights.to_published_dtype(learner.weights()), version=0, incarnation=1
    )
    path = published.path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ManifestError, match=r"model\.safetensors"):
        verify(published.path, published.manifest_sha256)


def test_only_old_versions_that_nobody_needs_are_deleted(weights: "WeightsStore") -> None:
    tensors = {"a": torch.ones(2)}
    for version in range(5):
        weights.write(tensors, version=version, incarnation=1)
    removed = weights.prune(pinned={1})
    assert sorted(gone.version for gone in removed) == [0, 2]
    assert all(not gone.path.exists() for gone in removed)


def refuse_links(*_arguments: object) -> None:
    raise OSError(errno.ENOTSUP, "no hard links here")


@pytest.mark.parametrize("has_links", [True, False])
def test_the_best_version_has_a_folder_of_its_own(
    weights: "WeightsStore", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_links: bool
) -> None:
    from services.trainer.checkpoints.best import BestVersion

    if not has_links:
        monkeypatch.setattr(os, "link", refuse_links)
    written = [weights.write({"a": torch.ones(2) * v}, version=v, incarnation=1) for v in range(4)]
    root = tmp_path / "best"
    best = BestVersion(root)
    best.copy_first([9], weights.published)
    assert not root.exists(), "no such version is there"
    for version in (0, 1):
        best.copy_first([version], weights.published)
        assert verify(root, written[version].manifest_sha256).step == version
        shared = (root / "model.safetensors").samefile(written[version].path / "model.safetensors")
        assert shared is has_links
    weights.prune(pinned=set())
    assert not written[1].path.exists()
    assert verify(root, written[1].manifest_sha256).step == 1
    filled = root.stat().st_ino
    later = BestVersion(root)  # a later life, and what a kill has left behind
    (tmp_path / "best.tmp").mkdir()
    later.copy_first([3], weights.published)
    assert root.stat().st_ino != filled
    filled = root.stat().st_ino
    BestVersion(root).copy_first([3], weights.published)
    assert root.stat().st_ino == filled, "it is filled once"
    assert sorted(path.name for path in tmp_path.iterdir() if "best" in path.name) == ["best"]


def test_a_new_life_publishes_an_old_version_under_its_own_name(weights: "WeightsStore") -> None:
    tensors = {"a": torch.ones(2)}
    old = weights.write(tensors, version=4, incarnation=1)
    adopted = weights.republish(4, incarnation=2)
    assert adopted is not None
    assert adopted.weights_blake3 == old.weights_blake3
    assert verify(adopted.path, adopted.manifest_sha256).incarnation == 2


def test_a_version_written_again_names_the_parent_it_had(weights: "WeightsStore") -> None:
    tensors = {"a": torch.ones(2)}
    first = [weights.write(tensors, version=v, incarnation=1) for v in (0, 2, 4)]
    assert [written.parent for written in first] == [-1, 0, 2]
    weights.write(tensors, version=4, incarnation=2)
    weights.prune(pinned=set())
    again = weights.write(tensors, version=4, incarnation=3)
    assert again.parent == 2


def test_a_damaged_version_is_not_adopted(weights: "WeightsStore") -> None:
    old = weights.write({"a": torch.ones(2)}, version=4, incarnation=1)
    (old.path / "config.json").unlink()
    assert weights.republish(4, incarnation=2) is None
