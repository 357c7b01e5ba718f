"""Experience operators of a configuration are found, and looked at before anything starts."""

import itertools
from pathlib import Path

import pytest

from tests.unit.config.builders import GRPO, SFT, config, stage
from trinity.config.checks.advice import advise
from trinity.config.plan.parts import ResolvedOperator
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.plugins import PLUGIN_DIRS_VARIABLE

SOURCE = """
from trinity.operators import OPERATORS
from trinity.operators.rollouts import Changes, Rollouts


@OPERATORS.register_module("{name}_short")
def short(rollouts: Rollouts, *, longest: int) -> Changes:
    return Changes(left_out=rollouts.response_lengths > longest)


def of_rewards(rewards: list[float]) -> list[float]:
    return rewards
"""
_NUMBERS = itertools.count()


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module that Python finds."""
    name = f"own_operators_{next(_NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(SOURCE.format(name=name))
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def planned(*operators: object, base: dict[str, object] = GRPO) -> tuple[ResolvedOperator, ...]:
    section = {"experience_pipeline": {"operators": list(operators)}}
    return stage(base, data_processor=section).operators


def refusal(name: str, **args: object) -> str:
    with pytest.raises(UserError) as caught:
        planned({"name": name, "args": args})
    said = str(caught.value)
    assert said.startswith("stage `main`: ") and len(said.splitlines()) == 1
    return said


def test_operators_are_planned_in_order_with_all_their_arguments() -> None:
    first, second, third = planned(
        {"name": "reward_filter", "args": {"threshold": 0.5}},
        {"name": "dapo_dynamic_sampling"},
        {"name": "mask_response_truncated"},
    )
    assert (first.name, first.args) == ("reward_filter", {"threshold": 0.5})
    assert second.args == {"metric_key": "accuracy", "correct_threshold": 0.0}
    assert third.args == {}


def test_a_plan_with_operators_is_read_as_it_was_written() -> None:
    section = {"experience_pipeline": {"operators": [{"name": "reward_filter"}]}}
    plan = stage(GRPO, data_processor=section)
    assert StagePlan.model_validate_json(plan.model_dump_json()).operators == plan.operators


def test_data_that_is_not_rolled_out_passes_no_operator() -> None:
    assert planned({"name": "reward_filter"}, base=SFT) == ()
    section = {"experience_pipeline": {"operators": [{"name": "reward_filter"}]}}
    [said] = advise(plan_experiment(config(SFT, data_processor=section)))
    assert "operators` has no effect: `sft` trains on data" in said


def test_a_name_that_is_wrong_is_answered_with_the_nearest_one() -> None:
    said = refusal("reward_filtr")
    assert "`data_processor.experience_pipeline.operators[0].name: reward_filtr`" in said
    assert "did you mean `reward_filter`?" in said
    without_name = refusal("")
    assert ".name` is missing: give one of " in without_name
    assert "dapo_dynamic_sampling, " in without_name


def test_arguments_that_are_wrong_are_named() -> None:
    key = "`data_processor.experience_pipeline.operators[0].args"
    unknown = refusal("reward_filter", treshold=1)
    assert f"has no argument {key}.treshold`: did you mean `threshold`?" in unknown
    assert f"{key}.threshold` must be a number, not 'much'" in refusal(
        "reward_filter", threshold="much"
    )
    lacking = refusal("reward_shaping_mapper")
    assert f"needs the argument {key}.reward_shaping_configs`: give it" in lacking
    wrong = refusal("reward_shaping_mapper", reward_shaping_configs=[{"stats_key": ""}])
    assert f"{key}`: reward_shaping_configs[0].stats_key is ''" in wrong


def test_operators_of_ones_own_are_found_by_their_path(mine: str) -> None:
    [operator] = planned({"name": f"{mine}.short", "args": {"longest": 5}})
    assert (operator.name, operator.args) == (f"{mine}.short", {"longest": 5})
    assert "needs the argument" in refusal(f"{mine}.short")


def test_operators_of_a_plugin_folder_are_found_by_name(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path))
    [operator] = planned({"name": f"{mine}_short", "args": {"longest": 5}})
    assert operator.name == f"{mine}_short"


def test_a_wrong_signature_is_refused_with_the_right_one(mine: str) -> None:
    said = refusal(f"{mine}.of_rewards")
    assert f".name: {mine}.of_rewards` is `def of_rewards(list[float]) -> list[float]`" in said
    assert "def name(rollouts: Rollouts, *, your_argument: float = 1.0) -> Changes" in said
    assert "types of trinity.operators.rollouts" in said


def test_data_juicers_server_stands_in_its_own_section() -> None:
    operator = {"name": "data_juicer", "args": {"operators": [{"text_length_filter": {}}]}}
    section = {"experience_pipeline": {"operators": [operator]}}
    service = {"data_juicer": {"server_url": "http://127.0.0.1:8005"}}
    [found] = stage(GRPO, data_processor=section, service=service).operators
    assert found.args["server_url"] == "http://127.0.0.1:8005"
    assert "`service.data_juicer.server_url`" in refusal("data_juicer", config_path="x.yaml")
    both = refusal("data_juicer", server_url="http://127.0.0.1:1")
    assert "give either `operators` or `config_path`" in both
