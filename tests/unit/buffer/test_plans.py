"""A plan that would harm the buffer is refused by the name of what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.buffer.domain.stage import parse_plan
from services.buffer.servicer.stage_calls import parse_and_check_plan
from tests.integration.buffer.plans import rollout_plan
from trinity.errors import InvalidRequest
from trinity.types import JsonObject


def changed(directory: Path, where: str, value: object) -> str:
    """A right plan with one value replaced."""
    plan: JsonObject = json.loads(rollout_plan(directory, num_eval=1).model_dump_json())
    *parents, last = where.split(".")
    part: Any = plan
    for name in parents:
        part = part[int(name) if name.isdigit() else name]
    part[last] = value
    return json.dumps(plan)


def test_a_right_plan_is_taken(tmp_path: Path) -> None:
    assert parse_and_check_plan(rollout_plan(tmp_path).model_dump_json()).needs_rollout


@pytest.mark.parametrize(
    ("where", "value", "named"),
    [
        ("train_batch_size", 0, "train_batch_size"),
        ("train_batch_size", 10**9, "train_batch_size"),
        ("rows_per_explore_step", 0, "rows_per_explore_step"),
        ("total_train_steps", 10**30, "total_train_steps"),
        ("config.buffer.batch_size", 10**9, "batch_size"),
        ("config.explorer.max_retry_times", 2**31, "max_retry_times"),
        ("algorithm.repeat_times", -1, "repeat_times"),
        ("num_expert_rows", 3, "num_expert_rows"),
        ("num_expert_rows", -3, "num_expert_rows"),
        ("algorithm.sample_strategy", "os.abort", "no sample strategy `os.abort`"),
        ("algorithm.sample_strategy_args", {"much": 1}, "much"),
        ("algorithm.sample_strategy", "mix", "auxiliary_buffers lacks 'sft_dataset'"),
        ("tasksets", [], "taskset"),
        ("tasksets.0.name", "a\x00", "null character"),
        ("tasksets.0.name", "\u00e9" * 251, "bytes"),
        ("tasksets.0.path", "/" + "a" * 1_000, "path"),
        ("tasksets.0.path", "/a\x00b", "null character"),
        ("tasksets.0.selector.selector_type", "difficulty_based", "two features"),
        ("tasksets.0.selector.selector_type", "offline_easy2hard", "needs features"),
        ("tasksets.0.selector.feature_keys", ["a\x00"], "null character"),
        ("eval_tasksets.0.name", "train", "the same name"),
        ("model_path", "x" * 2**20, "characters"),
        ("mode", 7, "mode"),
    ],
)
def test_a_harmful_plan_is_refused(tmp_path: Path, where: str, value: object, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        parse_and_check_plan(changed(tmp_path, where, value))


@pytest.mark.parametrize("where", ["table", "path", "split", "subset_name", "system_prompt"])
def test_no_text_of_a_plan_may_hold_what_postgres_and_file_names_refuse(
    tmp_path: Path, where: str
) -> None:
    with pytest.raises(InvalidRequest, match="plan_json holds a null character"):
        parse_and_check_plan(changed(tmp_path, f"tasksets.0.{where}", "a\x00b"))


def test_a_text_that_only_spells_one_may_stand_in_a_plan(tmp_path: Path) -> None:
    assert parse_and_check_plan(changed(tmp_path, "tasksets.0.split", "a\\u0000b"))


@pytest.mark.parametrize("text", ["", "{}", "[" * 20_000, '"\\ud800"', "null"])
def test_what_is_no_plan_is_refused_in_a_short_sentence(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_and_check_plan(text)
    assert len(str(refused.value)) < 300


def test_loops_over_hundreds_of_open_stages_parse_each_plan_once(tmp_path: Path) -> None:
    text = rollout_plan(tmp_path).model_dump_json()
    plans = [text + " " * number for number in range(300)]
    parse_plan.cache_clear()
    for _ in range(2):
        for plan in plans:
            parse_plan(plan)
    assert parse_plan.cache_info().misses == len(plans)
