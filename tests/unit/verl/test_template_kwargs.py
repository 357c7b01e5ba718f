"""veRL's variables of the chat template, and what it hands to an optimizer beyond its keys."""

from pathlib import Path

import pytest

from tests.unit.verl.builders import converted, flat, from_keys, missing, value
from trinity.verl.back import verl_command
from trinity.verl.values import JsonValue

KWARGS = "data.apply_chat_template_kwargs"
MORE = "optim.override_optimizer_config"
ACTOR = f"actor_rollout_ref.actor.{MORE}"
SFT = ("model.path=/m", "optim.lr=1e-5", "data.train_files=/d/train.parquet")


def test_each_variable_of_the_template_is_written() -> None:
    found = from_keys(
        f"+{KWARGS}.reasoning_effort=medium", f"+{KWARGS}.more.depth=2", f"{KWARGS}.thinking=True"
    )
    assert value(found, "model.chat_template_kwargs.reasoning_effort") == "medium"
    assert value(found, "model.chat_template_kwargs.more.depth") == 2
    assert value(found, "model.chat_template_kwargs.thinking") is True
    assert missing(found) == []


def test_the_switch_of_thinking_has_its_own_key() -> None:
    found = from_keys(f"+{KWARGS}.enable_thinking=False", f"+{KWARGS}.effort=low")
    assert value(found, "model.enable_thinking") is False
    assert value(found, "model.chat_template_kwargs.effort") == "low"
    assert "model.chat_template_kwargs.enable_thinking" not in flat(found.values)


def test_a_whole_mapping_is_its_parts_and_an_empty_one_is_nothing() -> None:
    found = from_keys(f"{KWARGS}={{reasoning_effort:high,enable_thinking:true}}")
    assert value(found, "model.chat_template_kwargs.reasoning_effort") == "high"
    assert value(found, "model.enable_thinking") is True
    empty = from_keys(f"{KWARGS}={{}}")
    assert missing(empty) == [] and not [
        key for key in flat(empty.values) if key.startswith("model.chat_template_kwargs")
    ]


def test_supervised_data_has_the_same_variables() -> None:
    found = from_keys(*SFT, f"+{KWARGS}.reasoning_effort=low", f"+{KWARGS}.enable_thinking=True")
    assert value(found, "model.chat_template_kwargs.reasoning_effort") == "low"
    assert value(found, "model.enable_thinking") is True


def test_variables_find_the_way_back(tmp_path: Path) -> None:
    found = from_keys(f"+{KWARGS}.effort=low", f"+{KWARGS}.enable_thinking=False")
    command = verl_command(found.yaml)
    assert f"+{KWARGS}.effort=low" in command
    again = converted(command, tmp_path)
    for key in ("model.chat_template_kwargs.effort", "model.enable_thinking"):
        assert value(again, key) == value(found, key)


@pytest.mark.parametrize(
    ("given", "key", "expected"),
    [
        (f"+{ACTOR}.eps=1e-6", "algorithm.optimizer.eps", 1e-6),
        (f"+{ACTOR}.adam_eps=1e-5", "algorithm.optimizer.eps", 1e-5),
        ("actor_rollout_ref.actor.optim.eps=1e-5", "algorithm.optimizer.eps", 1e-5),
        (f"+{ACTOR}.weight_decay=0.1", "algorithm.optimizer.weight_decay", 0.1),
        (f"+critic.{MORE}.eps=1e-6", "trainer.critic.optimizer.eps", 1e-6),
    ],
)
def test_what_an_optimizer_is_handed_beside_its_keys_is_written(
    given: str, key: str, expected: JsonValue
) -> None:
    found = from_keys("algorithm.adv_estimator=gae", given)
    assert value(found, key) == expected
    assert missing(found) == []


def test_so_it_is_for_supervised_fine_tuning() -> None:
    found = from_keys(*SFT, f"+{MORE}.eps=1e-6", f"+{MORE}.decoupled_weight_decay=True")
    assert value(found, "algorithm.optimizer.eps") == 1e-6
    assert missing(found) == []


@pytest.mark.parametrize(("number", "is_missing"), [(-1, False), (64, True)])
def test_all_rows_of_supervised_data_are_taken_unless_fewer_are_asked_for(
    number: int, is_missing: bool
) -> None:
    found = missing(from_keys(*SFT, f"data.train_max_samples={number}"))
    assert bool([line for line in found if "data.train_max_samples" in line]) is is_missing


@pytest.mark.parametrize("section", [f"{ACTOR}", f"critic.{MORE}"])
@pytest.mark.parametrize(
    "option", ["offload_fraction=1.0", "optimizer_cpu_offload=True", "fused=True"]
)
def test_what_changes_memory_and_time_alone_is_left_out(section: str, option: str) -> None:
    found = from_keys("algorithm.adv_estimator=gae", f"+{section}.{option}")
    assert missing(found) == []
    title = "Left out, does not affect training:"
    lines = list(found.report)
    below = lines[lines.index(title) :]
    assert any(f"{section}.{option.partition('=')[0]}=" in line for line in below)


@pytest.mark.parametrize(
    "option",
    ["decoupled_weight_decay=False", "amsgrad=True", "fp8_recipe=blockwise"],
)
def test_what_changes_a_step_of_the_optimizer_has_no_counterpart(option: str) -> None:
    name = option.partition("=")[0]
    assert [line for line in missing(from_keys(f"+{ACTOR}.{option}")) if f"{ACTOR}.{name}" in line]
    harmless = {"decoupled_weight_decay": "True", "amsgrad": "False"}
    if name in harmless:
        assert missing(from_keys(f"+{ACTOR}.{name}={harmless[name]}")) == []


def test_moments_that_are_kept_more_exactly_here_are_pointed_out() -> None:
    short = from_keys(f"+{ACTOR}.exp_avg_dtype=bf16", f"+{ACTOR}.main_params_dtype=fp32")
    assert missing(short) == []
    assert any("keeps its moments in float32, which is more exact" in line for line in short.report)
    assert not any("keeps the weights in float32, which" in line for line in short.report)


def test_a_warm_up_begins_at_a_share_of_its_rate() -> None:
    optimizer = "actor_rollout_ref.actor.optim"
    found = from_keys(f"{optimizer}.lr=1e-5", f"{optimizer}.init_lr_ratio=0.1")
    assert value(found, "algorithm.optimizer.lr_warmup_init") == pytest.approx(1e-6)
    assert missing(found) == []


def test_gvpos_recipe_does_what_its_keys_say(tmp_path: Path) -> None:
    text = "python3 -m recipe.gvpo.gvpo_main_ppo actor_rollout_ref.model.path=/m"
    loss = "actor_rollout_ref.actor.policy_loss.loss_mode=gvpo"
    found = converted(f"{text} algorithm.adv_estimator=grpo {loss}\n", tmp_path)
    assert missing(found) == []
    assert any("sums its loss over the rows of a micro-batch" in line for line in found.report)
    other = converted(f"{text} algorithm.adv_estimator=grpo\n", tmp_path)
    assert any("a custom program" in line for line in missing(other))
