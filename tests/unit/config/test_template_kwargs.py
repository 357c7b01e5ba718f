"""Variables of chat templates: the policy's, and those of the models beside it."""

import pytest

from services.explorer.engines import stage_models
from tests.unit.config.builders import GRPO, config
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.runtime.json_values import JsonObject

EFFORT: JsonObject = {"reasoning_effort": "high"}
SERVED: JsonObject = {
    "engine_type": "external",
    "external_model_config": {"base_url_env": "A", "api_key_env": "K", "model_name": "served"},
}


def stage(model: JsonObject, *auxiliary: JsonObject) -> StagePlan:
    changes = {
        "model": model,
        "cluster": {"node_num": 1, "gpu_per_node": 8},
        "explorer": {"auxiliary_models": [{"model_path": "/judge", **one} for one in auxiliary]},
    }
    return plan_experiment(config(GRPO, **changes)).stages[-1]


def test_a_model_beside_the_policy_has_the_policys_variables_unless_it_has_its_own() -> None:
    given: JsonObject = {"enable_thinking": False, "chat_template_kwargs": EFFORT}
    own: JsonObject = {"chat_template_kwargs": {"depth": 2}, "enable_thinking": True}
    models = stage_models(stage(given, {}, own, {"chat_template_kwargs": {}}))
    assert [model.template_kwargs for model in models] == [
        {**EFFORT, "enable_thinking": False},
        {**EFFORT, "enable_thinking": False},
        {"depth": 2, "enable_thinking": True},
        {"enable_thinking": False},
    ]


def test_a_model_served_elsewhere_is_told_its_own_variables_alone() -> None:
    given: JsonObject = {"enable_thinking": False, "chat_template_kwargs": EFFORT}
    asked: JsonObject = {**SERVED, "chat_template_kwargs": {"depth": 2}}
    models = stage_models(stage(given, SERVED, asked))[1:]
    assert [model.template_kwargs for model in models] == [{}, {"depth": 2}]


def test_without_them_a_template_gets_nothing() -> None:
    assert stage_models(stage({}))[0].template_kwargs == {}


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"chat_template_kwargs": {"messages": []}}, "sets `messages`, which follows from"),
        ({"chat_template_kwargs": {"tools": None}}, "sets `tools`, which follows from"),
        (
            {"chat_template_kwargs": {"enable_thinking": True}, "enable_thinking": False},
            "and so does `model.enable_thinking`, to another value: remove one",
        ),
    ],
)
def test_a_variable_that_is_set_already_is_refused(model: JsonObject, said: str) -> None:
    with pytest.raises(UserError, match=said):
        stage(model)


def test_both_may_say_the_same() -> None:
    same: JsonObject = {"chat_template_kwargs": {"enable_thinking": True}, "enable_thinking": True}
    assert stage_models(stage(same))[0].template_kwargs == {"enable_thinking": True}


def test_a_judges_variables_are_checked_by_its_own_name() -> None:
    with pytest.raises(UserError, match=r"`explorer.auxiliary_models\[0\].chat_template_kwargs`"):
        stage({}, {"chat_template_kwargs": {"add_generation_prompt": False}})
