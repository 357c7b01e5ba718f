"""What is passed to verl's engines arrives there, and moves no weight elsewhere than without it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.trainer.learners import (
    Build,
    assert_same,
    critic_weights_of,
    stepped,
    weights_of,
)
from tests.unit.trainer.builders import make_plan, random_batch
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError

if TYPE_CHECKING:
    from services.trainer.learner.learner import Learner

BATCH = random_batch(16, seed=5)
KL = {"kl_loss_fn": "k2", "kl_loss_fn_args": {"kl_coef": 0.1}}


def ppo_plan(model: Path, **trainer: object) -> StagePlan:
    return make_plan(
        model, {"algorithm_type": "ppo", **KL}, {"max_token_len_per_gpu": 190, **trainer}
    )


def engines_of(learner: "Learner") -> dict[str, object]:
    roles = learner._roles
    assert roles.critic is not None and roles.reference is not None
    workers = {
        "actor": roles.actor.worker,
        "critic": roles.critic._worker,
        "reference": roles.reference._worker,
    }
    return {name: worker.engine for name, worker in workers.items()}


@pytest.mark.parametrize(
    "trainer",
    [
        {"param_offload": True, "optimizer_offload": True},
        {"offload_policy": True},
        {"forward_prefetch": True, "fsdp_size": 1, "trainer_strategy": "fsdp"},
    ],
    ids=["offload", "policy", "layout"],
)
def test_where_state_rests_changes_no_bit(
    learner_of: Build, model: Path, trainer: dict[str, object]
) -> None:
    usual, changed = learner_of(ppo_plan(model)), learner_of(ppo_plan(model, **trainer))
    engine_config = engines_of(changed)["actor"].engine_config  # type: ignore[attr-defined]
    for key, value in trainer.items():
        if key != "trainer_strategy":
            assert getattr(engine_config, key) == value
    for step in (1, 2):
        for learner in (usual, changed):
            stepped(learner, random_batch(16, seed=step, step=step))
    assert_same(weights_of(usual), weights_of(changed))
    assert_same(critic_weights_of(usual), critic_weights_of(changed))


def test_offloaded_weights_come_once_for_a_pass_over_all_micro_batches(
    learner_of: Build, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_of(ppo_plan(model, param_offload=True, max_token_len_per_gpu=80))
    engine = engines_of(learner)["actor"]
    moves: list[tuple[str, bool]] = []
    passes: list[int] = []
    move, compute = engine.to, engine.forward_backward_batch  # type: ignore[attr-defined]

    def counted(*, device: str, model: bool, optimizer: bool, grad: bool) -> None:
        moves.append((device, model))
        move(device=device, model=model, optimizer=optimizer, grad=grad)

    def noted(*arguments: object, **named: object) -> object:
        passes.append(len(moves))
        return compute(*arguments, **named)

    monkeypatch.setattr(engine, "to", counted)
    monkeypatch.setattr(engine, "forward_backward_batch", noted)
    stepped(learner, BATCH)
    assert len(passes) == 3
    assert len(set(passes)) == 1, "nothing moves between the parts of a batch"
    assert moves[-1] == ("cpu", True)


@pytest.mark.parametrize("stays", [False, True])
def test_a_turn_moves_all_that_policy_and_critic_hold_unless_fsdp_keeps_it_on_the_host(
    learner_of: Build, model: Path, monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    learner = learner_of(ppo_plan(model, offload_policy=stays))
    stepped(learner, BATCH)
    moves: list[tuple[str, dict[str, object]]] = []
    for name, engine in engines_of(learner).items():

        def noted(role: str = name, **options: object) -> None:
            if any(options[part] for part in ("model", "optimizer", "grad")):
                moves.append((role, options))

        monkeypatch.setattr(engine, "to", noted)
    learner.enter_device()
    learner.leave_device()
    whole = {"device": "cpu", "model": True, "optimizer": True, "grad": True}
    assert moves == ([] if stays else [("actor", whole), ("critic", whole)] * 2)
    actor = engines_of(learner)["actor"]
    assert all(p.grad is None for p in actor.module.parameters())  # type: ignore[attr-defined]


def test_the_critic_has_offload_of_its_own(learner_of: Build, model: Path) -> None:
    engines = engines_of(
        learner_of(ppo_plan(model, param_offload=True, critic={"param_offload": False}))
    )
    assert engines["actor"].is_param_offload_enabled  # type: ignore[attr-defined]
    assert not engines["critic"].is_param_offload_enabled  # type: ignore[attr-defined]


def test_keys_laid_over_a_models_configuration_reach_policy_and_reference(
    learner_of: Build, model: Path
) -> None:
    over = {"rms_norm_eps": 0.01}
    engines = engines_of(learner_of(ppo_plan(model, override_config=over)))
    found = {name: engine.module.config.rms_norm_eps for name, engine in engines.items()}  # type: ignore[attr-defined]
    assert found["actor"] == found["reference"] == 0.01 != found["critic"]
    of_critic = engines_of(learner_of(ppo_plan(model, critic={"override_config": over})))
    assert of_critic["critic"].module.config.rms_norm_eps == 0.01  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        ({"override_config": {"rms_norm_epz": 1}}, "did you mean `rms_norm_eps`"),
        (
            {"critic": {"override_config": {"nothing": 1}}},
            r"trainer\.critic\.override_config\.noth",
        ),
        ({"override_config": {"rms_norm_eps": {"a": 1}}}, "into a copy of config.json"),
        ({"external_lib": "no_such_library"}, "`trainer.external_lib: no_such_library` cannot be"),
    ],
)
def test_what_does_not_fit_is_named(
    learner_of: Build, model: Path, trainer: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        learner_of(ppo_plan(model, **trainer))


def test_a_library_is_imported_before_the_model(
    learner_of: Build, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_models_of_a_test.py").write_text("IS_THERE = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    learner_of(ppo_plan(model, external_lib="own_models_of_a_test"))
    assert sys.modules["own_models_of_a_test"].IS_THERE
