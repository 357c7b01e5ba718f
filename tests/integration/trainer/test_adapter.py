"""With LoRA only the adapter learns, and everybody else sees the model that both make."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.integration.trainer.learners import (
    Build,
    assert_close,
    assert_same,
    stepped,
    weights_of,
)
from tests.unit.trainer.builders import (
    grpo_plan,
    make_plan,
    random_batch,
    random_pairs,
)
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.plan.start_checkpoint import find_start_checkpoint
from trinity.errors import UserError
from trinity.weights.shards import shapes_of

if TYPE_CHECKING:
    from services.trainer.collectives import Ranks
    from services.trainer.learner.learner import Learner

KL = {"kl_loss_fn": "k2", "kl_loss_fn_args": {"kl_coef": 0.1}}
BATCH = random_batch(16, seed=5)


def lora_plan(
    model: Path, lora: Mapping[str, object] | None = None, /, **algorithm: object
) -> StagePlan:
    adapter = {"lora_rank": 4, "lora_alpha": 8, **(lora or {})}
    grpo = {"algorithm_type": "grpo", "repeat_times": 8, **algorithm}
    return make_plan(model, grpo, model_section={"lora_configs": [adapter]})


def trained(learner: "Learner", num_steps: int = 3) -> None:
    for step in range(1, num_steps + 1):
        stepped(learner, random_batch(16, seed=step, step=step), rate=1e-2)


def test_an_adapter_begins_as_the_model_itself(learner_of: Build, model: Path) -> None:
    plain, adapted = learner_of(grpo_plan(model)), learner_of(lora_plan(model))
    assert_same(weights_of(plain), weights_of(adapted))


def test_gradients_and_moments_are_of_the_adapter_alone(learner_of: Build, model: Path) -> None:
    learner = learner_of(lora_plan(model, **KL))
    engine = learner._roles.actor.worker.engine
    learning: set[str] = set()
    take_step = engine.optimizer_step

    def watch() -> object:
        parameters = engine.module.named_parameters()
        learning.update(name for name, one in parameters if one.grad is not None)
        return take_step()

    engine.optimizer_step = watch
    trained(learner)
    adapters = {name for name, _ in engine.module.named_parameters() if ".lora_" in name}
    assert learning == adapters
    assert len(engine.optimizer.state) == len(adapters)
    assert len(adapters) == 2 * 7 * 2, "two matrices for seven linear layers of two blocks"


def test_what_is_published_is_the_model_plus_the_product(learner_of: Build, model: Path) -> None:
    learner = learner_of(lora_plan(model))
    before = weights_of(learner)
    trained(learner)
    adapter = learner._roles.actor.adapter
    assert adapter is not None
    own, after = adapter.weights(), weights_of(learner)
    for name, base in before.items():
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{stem}.lora_A.weight" not in own:
            np.testing.assert_array_equal(after[name], base, err_msg=name)
            continue
        product = own[f"{stem}.lora_B.weight"].numpy() @ own[f"{stem}.lora_A.weight"].numpy()
        assert np.abs(product).max() > 0
        np.testing.assert_allclose(after[name], base + 2.0 * product, rtol=1e-5, atol=1e-7)


def test_an_adapter_learns_in_bfloat16_and_is_kept_in_float32(
    learner_of: Build, model: Path
) -> None:
    grpo = {"algorithm_type": "grpo", "repeat_times": 8, **KL}
    plan = make_plan(model, grpo, {"dtype": "bfloat16"}, {"lora_configs": [{"lora_rank": 4}]})
    learner = learner_of(plan)
    trained(learner)
    adapter = learner._roles.actor.adapter
    assert adapter is not None
    assert {tensor.dtype for tensor in adapter.weights().values()} == {torch.float32}
    changed = [name for name, one in adapter.weights().items() if "lora_B" in name and one.any()]
    assert len(changed) == 2 * 7


def test_a_pair_is_measured_against_the_model_without_its_adapter(
    learner_of: Build, model: Path
) -> None:
    plan = make_plan(model, {"algorithm_type": "dpo"}, None, {"lora_configs": [{"lora_rank": 4}]})
    learner, pairs = learner_of(plan), random_pairs(6)
    losses = [stepped(learner, pairs, rate=1e-2)["actor/loss"] for _ in range(3)]
    assert losses[0] == pytest.approx(np.log(2), rel=1e-4), "as far from itself as from the model"
    assert losses[2] < losses[0]


def test_publishing_changes_nothing_of_what_is_trained(learner_of: Build, model: Path) -> None:
    quiet, asked = learner_of(lora_plan(model)), learner_of(lora_plan(model))
    for step in (1, 2, 3):
        batch = random_batch(16, seed=step, step=step)
        stepped(quiet, batch)
        weights_of(asked)
        stepped(asked, batch)
    assert_same(weights_of(quiet), weights_of(asked))
    assert not any(tensor.requires_grad for _, tensor in asked.weights()), "no graph is kept"


def test_the_reference_is_the_model_without_its_adapter(learner_of: Build, model: Path) -> None:
    learner, frozen = learner_of(lora_plan(model, **KL)), learner_of(grpo_plan(model, **KL))
    trained(learner)
    seen: list[np.ndarray] = []
    for one in (learner, frozen):
        prepare = one._preparation.prepare_batch(BATCH, kl_coef=0.0)
        assert prepare.reference_logprobs_BT is not None
        seen.append(prepare.reference_logprobs_BT)
    np.testing.assert_allclose(seen[0], seen[1], rtol=1e-6, atol=1e-6)


def test_the_published_model_says_what_the_trainer_says(
    learner_of: Build, ranks: "Ranks", model: Path, tmp_path: Path
) -> None:
    from safetensors.torch import save_file
    from transformers import AutoConfig

    from services.trainer.learner.learner import Learner

    learner = learner_of(lora_plan(model))
    trained(learner)
    merged = tmp_path / "merged"
    AutoConfig.from_pretrained(model).save_pretrained(merged)
    tensors = {name: tensor.contiguous() for name, tensor in learner.weights()}
    save_file(tensors, merged / "model.safetensors", metadata={"format": "pt"})
    loaded = Learner(plan=grpo_plan(merged), model_directory=merged, ranks=ranks)
    seen = [
        one._roles.actor.compute_outputs(
            one._preparation.prepare_batch(BATCH, kl_coef=0.0), ["logprobs"]
        )
        for one in (learner, loaded)
    ]
    np.testing.assert_allclose(seen[0]["logprobs"], seen[1]["logprobs"], rtol=1e-4, atol=1e-5)


def test_training_goes_on_from_a_checkpoint_of_the_adapter_bit_for_bit(
    learner_of: Build, ranks: "Ranks", model: Path, tmp_path: Path
) -> None:
    from services.trainer.checkpoints.checkpoints import CheckpointStore

    store = CheckpointStore(root=tmp_path / "checkpoints", stage="rft", ranks=ranks)
    plan = lora_plan(model, **KL)
    learner, restored = learner_of(plan), learner_of(plan)
    trained(learner, num_steps=2)
    written = store.write(learner, step=2, incarnation=1)
    stepped(learner, random_batch(16, seed=9, step=3))
    restored.load(written.path)
    stepped(restored, random_batch(16, seed=9, step=3))
    assert_same(weights_of(learner), weights_of(restored))
    assert all(".lora_" in name for name in shapes_of(written.path / "shards"))


@pytest.mark.parametrize("named", [{}, {"base_model_name": "of/another"}])
def test_a_checkpoint_has_an_adapter_that_peft_loads(
    learner_of: Build, ranks: "Ranks", model: Path, tmp_path: Path, named: dict[str, str]
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from services.trainer.checkpoints.checkpoints import CheckpointStore

    store = CheckpointStore(root=tmp_path / "checkpoints", stage="rft", ranks=ranks)
    learner = learner_of(lora_plan(model, {"target_modules": "q_proj, v_proj", **named}))
    trained(learner)
    adapter = store.write(learner, step=3, incarnation=1).path / "lora_adapter"
    written = json.loads((adapter / "adapter_config.json").read_text())
    assert (written["r"], written["base_model_name_or_path"]) == (
        4,
        *(named.values() or [str(model)]),
    )
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), str(adapter))
    found = loaded.merge_and_unload().state_dict()
    ours = weights_of(learner)
    assert_close(ours, {name: found[name].numpy() for name in ours})


def test_an_adapter_goes_on_where_another_run_left_it(
    learner_of: Build, ranks: "Ranks", model: Path, tmp_path: Path
) -> None:
    from services.trainer.checkpoints.checkpoints import CheckpointStore

    store = CheckpointStore(root=tmp_path / "checkpoints", stage="rft", ranks=ranks)
    learner = learner_of(lora_plan(model))
    trained(learner)
    adapter = store.write(learner, step=3, incarnation=1).path / "lora_adapter"
    follower = learner_of(lora_plan(model, {"path": str(adapter)}))
    assert_same(weights_of(learner), weights_of(follower))
    before = weights_of(follower)
    trained(follower, num_steps=1)
    assert any((weights_of(follower)[name] != array).any() for name, array in before.items())


def test_an_adapter_goes_on_as_in_the_run_whose_checkpoint_is_given(
    learner_of: Build, ranks: "Ranks", model: Path, tmp_path: Path
) -> None:
    from services.trainer.checkpoints.checkpoints import CheckpointStore
    from services.trainer.learner.learner import Learner

    store = CheckpointStore(root=tmp_path / "checkpoints", stage="rft", ranks=ranks)
    plan = lora_plan(model)
    former = learner_of(plan)
    trained(former)
    found = find_start_checkpoint(str(store.write(former, step=3, incarnation=1).path))
    begun = Learner(plan=plan, model_directory=model, ranks=ranks, start_checkpoint=found)
    for one in (former, begun):
        stepped(one, BATCH)
    assert_same(weights_of(former), weights_of(begun))


def test_checkpoints_of_all_weights_and_of_adapters_are_told_apart(
    learner_of: Build, ranks: "Ranks", model: Path, tmp_path: Path
) -> None:
    from services.trainer.checkpoints.checkpoints import CheckpointStore

    store = CheckpointStore(root=tmp_path / "checkpoints", stage="rft", ranks=ranks)
    whole, adapted = learner_of(grpo_plan(model)), learner_of(lora_plan(model))
    of_whole = store.write(whole, step=1, incarnation=1).path
    of_adapter = store.write(adapted, step=2, incarnation=1).path
    with pytest.raises(UserError, match="is of an adapter: write"):
        whole.load(of_adapter)
    with pytest.raises(UserError, match="is of all weights"):
        adapted.load(of_whole)


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"target_modules": "q_proj,wq"}, "called `wq`, as `target_modules` has it: its linear"),
        ({"target_modules": r".*\.wq"}, r"called `\.\*\\.wq`"),
        ({"exclude_modules": "gate"}, "called `gate`, as `exclude_modules`"),
        ({"target_modules": "q_proj", "exclude_modules": "q_proj"}, "excludes all of"),
        ({"target_modules": "norm"}, "has `norm`, which is not linear: adapters go on `down_proj`"),
        ({"target_modules": "lm_head"}, "input embeddings' as well"),
    ],
)
def test_layers_that_cannot_be_adapted_are_named(
    learner_of: Build, model: Path, lora: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        learner_of(lora_plan(model, lora))
