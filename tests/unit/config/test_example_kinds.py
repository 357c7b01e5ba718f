"""Settings of Trinity-RFT's example files act, and mistakes beside them stay errors."""

import pytest

from tests.unit.config.builders import GRPO, config
from trinity.config.planning import plan_experiment
from trinity.errors import UserError


def with_evaluation(*evals: dict[str, object]) -> dict[str, object]:
    return {"explorer_input": {"eval_tasksets": list(evals)}}


def test_an_evaluation_may_have_the_name_of_a_taskset_to_train_on() -> None:
    same: dict[str, object] = {"name": "train", "path": "/data/test.jsonl"}
    plan = plan_experiment(config(GRPO, buffer=with_evaluation(same)))
    (taskset,) = plan.stages[0].eval_tasksets
    assert taskset.name == "train_eval"


def test_two_evaluations_and_what_clients_submit_keep_their_names() -> None:
    test: dict[str, object] = {"name": "test", "path": "/data/test.jsonl"}
    client: dict[str, object] = {"name": "train", "storage_type": "client"}
    taken: dict[str, object] = {"name": "train_eval", "path": "/data/test.jsonl"}
    for evals in ([test, test], [client], [{**test, "name": "train"}, taken]):
        with pytest.raises(UserError, match="give each its own name"):
            plan_experiment(config(GRPO, buffer=with_evaluation(*evals)))


def test_lengths_of_an_auxiliary_model_each_bound_their_own_part() -> None:
    judge = {
        "model_path": "/models/judge",
        "max_model_len": 20,
        "max_prompt_tokens": 16,
        "max_response_tokens": 40,
    }
    plan = plan_experiment(config(GRPO, explorer={"auxiliary_models": [judge]}))
    (model,) = plan.stages[0].auxiliary_models
    assert (model.max_model_len, model.max_prompt_tokens) == (20, 16)
    assert model.sampling.max_tokens == 19
    lengths = {"max_prompt_tokens": 16, "max_response_tokens": 16}
    with pytest.raises(UserError, match=r"exceed `model\.max_model_len: 24`"):
        plan_experiment(config(GRPO, model=lengths))
