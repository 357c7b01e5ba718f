"""Models that score: their role, their engine, their GPUs, and where they are the reward."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.config.builders import GRPO, SAFETENSORS, config, stage, write_model
from tests.unit.config.preflight import check
from trinity.config.checks.advice import advise
from trinity.config.plan.placement import engine_groups_of
from trinity.config.planning import PlanErrors, plan_experiment

CLASSIFIER = "Qwen2ForSequenceClassification"
ELSEWHERE = {"engine_type": "external", "external_model_config": {"model_name": "rm"}}


def scorer(folder: Path, *, architecture: str = "Qwen2ForCausalLM", head: str = "") -> str:
    """A directory with a class, and with a head's tensor in a file of its own."""
    found = write_model(folder, architectures=[architecture])
    if head:
        (folder / "value_head.safetensors").write_bytes(
            SAFETENSORS.replace(b'"w"', f'"{head}"'.encode()).replace(
                len(SAFETENSORS[8:-4]).to_bytes(8, "little"),
                (len(SAFETENSORS[8:-4]) + len(head) - 1).to_bytes(8, "little"),
            )
        )
    return found


def with_scorer(path: str, **keys: object) -> dict[str, Any]:
    return {"auxiliary_models": [{"name": "rm", "model_path": path, **keys}]}


@pytest.mark.parametrize(
    ("architecture", "head", "role", "engine"),
    [
        (CLASSIFIER, "score.weight", "score", "vllm"),
        ("Qwen2ForProcessRewardModel", "score.0.weight", "score", "vllm"),
        ("Qwen2ForTokenClassification", "score.weight", "score", "transformers"),
        ("Qwen2ForCausalLM", "v_head.summary.weight", "score", "transformers"),
        ("Qwen2ForCausalLM", "score.weight", "score", "transformers"),
        ("Qwen2ForCausalLM", "", "generate", "vllm"),
    ],
)
def test_files_decide_on_role_and_engine(
    architecture: str, head: str, role: str, engine: str, tmp_path: Path
) -> None:
    path = scorer(tmp_path / "rm", architecture=architecture, head=head)
    plan = stage(explorer=with_scorer(path))
    [model] = plan.auxiliary_models
    assert (model.role, model.engine.engine_type) == (role, engine)
    assert len(engine_groups_of(plan)) == (2 if engine == "vllm" else 1)
    assert plan.num_rollout_gpus == (2 if engine == "vllm" else 1)
    assert plan.tasksets[0].reward == ("model_reward" if role == "score" else None)


def test_a_scorer_is_the_reward_of_what_names_none(tmp_path: Path) -> None:
    explorer = with_scorer(scorer(tmp_path / "rm", architecture=CLASSIFIER))
    above = "explorer_input"

    def reward(**given: object) -> str | None:
        plan = stage(explorer=explorer, buffer={above: given})
        return plan.tasksets[0].reward

    assert reward() == "model_reward"
    assert reward(default_workflow_type="math_workflow") == "model_reward"
    assert reward(default_reward_fn_type="math_reward") == "math_reward"
    assert reward(taskset={"format": {"reward_fn_key": "source"}}) is None
    assert reward(default_workflow_type="frozen_lake_workflow") is None
    base = {**GRPO, "buffer": {**GRPO["buffer"], above: {"taskset": {"path": "/data/a.jsonl"}}}}  # type: ignore[dict-item]
    assert stage(base, explorer=explorer).tasksets[0].workflow == "simple_workflow"
    assert [
        t for t in advise(plan_experiment(config(explorer=explorer))) if "never asked" in t
    ] == []


@pytest.mark.parametrize(
    ("workflow", "keys", "said"),
    [
        ("rubric_judge_workflow", {}, "asks the first of `explorer.auxiliary_models` for texts"),
        ("simple_workflow", {"role": "generate"}, "which writes texts and has no head"),
    ],
)
def test_the_wrong_kind_of_model_is_refused(
    workflow: str, keys: dict[str, object], said: str, tmp_path: Path
) -> None:
    path = scorer(tmp_path / "rm", architecture=CLASSIFIER)
    tasks = {
        "default_workflow_type": workflow,
        "taskset": {"default_reward_fn_type": "model_reward", "reward_fn_args": {"model": "rm"}},
    }
    with pytest.raises(PlanErrors, match=said):
        plan_experiment(
            config(explorer=with_scorer(path, **keys), buffer={"explorer_input": tasks})
        )


def test_a_reward_without_a_model_that_scores_is_refused() -> None:
    tasks = {"explorer_input": {"default_reward_fn_type": "model_reward"}}
    with pytest.raises(PlanErrors, match="finds no model that scores"):
        plan_experiment(config(buffer=tasks))
    served = {"auxiliary_models": [{**ELSEWHERE, "name": "rm", "role": "score"}]}
    assert stage(buffer=tasks, explorer=served).auxiliary_models[0].role == "score"


@pytest.mark.parametrize(
    ("architecture", "keys", "said"),
    [
        (CLASSIFIER, {"role": "generate"}, f"names a {CLASSIFIER}, which scores texts"),
        (CLASSIFIER, {"score_tokens": ["+"]}, "and it has one: leave it out|has one: leave it"),
        ("Qwen2ForCausalLM", {"role": "score"}, "and it has no head for them"),
        ("Qwen2ForCausalLM", {"engine_type": "transformers", "role": "generate"}, "engine_type"),
        ("Qwen2ForCausalLM", {"score_tokens": ["+"]}, "`explorer.auxiliary_models.0..score_tok"),
    ],
)
def test_files_that_do_not_do_what_is_asked_are_refused(
    architecture: str, keys: dict[str, object], said: str, tmp_path: Path
) -> None:
    import re

    path = scorer(tmp_path / "rm", architecture=architecture)
    policy = write_model(tmp_path / "policy")
    found = check(tmp_path, model={"model_path": policy}, explorer=with_scorer(path, **keys))
    assert re.search(said, found), found


def test_words_stand_for_a_head(tmp_path: Path) -> None:
    path = scorer(tmp_path / "rm")
    keys = {"role": "score", "score_tokens": ["-", "+"]}
    policy = write_model(tmp_path / "policy")
    found = check(tmp_path, model={"model_path": policy}, explorer=with_scorer(path, **keys))
    assert "auxiliary_models" not in found
    [model] = stage(explorer=with_scorer(path, **keys)).auxiliary_models
    assert model.engine.engine_type == "transformers"


def test_a_colocated_gpu_takes_a_scorer_on_the_processor(tmp_path: Path) -> None:
    path = scorer(tmp_path / "rm", architecture=CLASSIFIER)
    one = {"mode": "colocate", "cluster": {"gpu_per_node": 1}}
    with pytest.raises(PlanErrors, match="no auxiliary models on it"):
        plan_experiment(config(**one, explorer=with_scorer(path)))
    plan_experiment(config(**one, explorer=with_scorer(path, engine_type="transformers")))


def test_a_head_is_read_from_the_header_alone(tmp_path: Path) -> None:
    path = Path(scorer(tmp_path / "rm", head="v_head.weight"))
    header = json.loads((path / "value_head.safetensors").read_bytes()[8:-4])
    assert list(header) == ["v_head.weight"]
