"""Engine and trainer turn queries and keys by the same angles, whatever the user writes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import pytest

from services.explorer.engine.vllm_options import Hardware, engine_arguments
from services.explorer.engines import _engine_options, stage_models
from tests.integration.trainer.learners import Build
from tests.unit.trainer.builders import make_plan
from trinity.config.plan.stage_plan import StagePlan

if TYPE_CHECKING:
    from services.trainer.learner.learner import Learner

Angles = npt.NDArray[np.float32]
NUM_PLACES = 200
HEAD = 32
GRPO = {"algorithm_type": "grpo", "repeat_times": 8}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
CASES: dict[str, tuple[Mapping[str, object], Mapping[str, object]]] = {
    "base": ({"rope_theta": 500_000.0}, {}),
    "yarn": ({"rope_scaling": YARN}, {}),
    "older name, with a base": (
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 500_000.0},
        {},
    ),
    "an override of the trainer's": ({}, {"override_config": {"rope_theta": 500_000.0}}),
}


def plan_of(model: Path, section: Mapping[str, object], trainer: Mapping[str, object]) -> StagePlan:
    return make_plan(model, GRPO, trainer, section)


def trained(learner: "Learner", role: Literal["actor", "critic"] = "actor") -> Angles:
    """Cosines of the places in a model that is trained."""
    import torch

    models = learner._roles.critic if role == "critic" else learner._roles.actor
    assert models is not None
    rotary = models.worker.engine.module.model.rotary_emb
    cosines, _ = rotary(torch.zeros(1, 1, 1), torch.arange(NUM_PLACES)[None])
    found: Angles = cosines[0, :, : HEAD // 2].numpy()
    return found


class NoTokenizer:
    """As much of a tokenizer as an engine's options need."""

    end_token_ids = (1,)
    vision = None


def rolled_out(plan: StagePlan) -> Angles:
    """The same in the engine, from the arguments that it is started with."""
    from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope

    options = _engine_options(stage_models(plan)[0], NoTokenizer())  # type: ignore[arg-type]
    arguments = engine_arguments(options, Hardware(has_gpu=False, num_cpus=1))
    overrides = arguments.get("hf_overrides", {})
    config = ModelConfig(
        model=str(arguments["model"]),
        skip_tokenizer_init=True,
        dtype="float32",
        hf_overrides=overrides,
    ).hf_text_config
    with set_current_vllm_config(VllmConfig()):
        rotary = get_rope(HEAD, max_position=NUM_PLACES, rope_parameters=config.rope_parameters)
    found: Angles = rotary.cos_sin_cache[:NUM_PLACES, : HEAD // 2].float().numpy()
    return found


@pytest.mark.parametrize("case", CASES)
def test_engine_and_trainer_have_the_same_angles(learner_of: Build, model: Path, case: str) -> None:
    section, trainer = CASES[case]
    usual = trained(learner_of(plan_of(model, {}, {})))
    plan = plan_of(model, section, trainer)
    changed = trained(learner_of(plan))
    assert np.abs(changed - usual).max() > 0.1, "the keys act"
    if section:
        np.testing.assert_allclose(rolled_out(plan), changed, atol=1e-5)
    else:  # laid over the trainer's models alone, which `config check` says
        np.testing.assert_allclose(rolled_out(plan), usual, atol=1e-5)


def test_a_critic_has_the_policys_angles_unless_its_model_is_another(
    learner_of: Build, model: Path
) -> None:
    usual, own = trained(learner_of(plan_of(model, {}, {}))), {"critic_model_path": str(model)}
    for section, is_changed in (({}, True), (own, False)):
        plan = make_plan(model, {"algorithm_type": "ppo"}, {}, {"rope_theta": 5e5, **section})
        learner = learner_of(plan)
        assert (np.abs(trained(learner, "critic") - usual).max() > 0.1) == is_changed
        assert np.abs(trained(learner) - usual).max() > 0.1


def test_published_weights_carry_the_changed_embeddings(tmp_path: Path, model: Path) -> None:
    from services.trainer.checkpoints.weights import ModelFiles

    plan = plan_of(model, {"rope_theta": 500_000.0}, {})
    files = ModelFiles(
        copy=tmp_path / "copy", dtype="float32", chat_template=None, model=plan.config.model
    )
    files.copy_from(model)
    written = json.loads((tmp_path / "copy" / "config.json").read_text())
    assert written["rope_parameters"]["rope_theta"] == 500_000.0
