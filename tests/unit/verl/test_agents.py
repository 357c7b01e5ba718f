"""Turns, tools and programs of veRL's and its recipes, and the greedy baseline of ReMax."""

from pathlib import Path

import pytest

from tests.unit.subtests import as_subtests
from tests.unit.verl.builders import converted, flat, from_keys, missing, value
from trinity.config.check import check_file
from trinity.verl.back import verl_command

ROLLOUT = "actor_rollout_ref.rollout"
WORKFLOW = "buffer.explorer_input.default_workflow_type"
ARGS = "buffer.explorer_input.taskset.workflow_args"
EVAL_ARGS = "buffer.explorer_input.eval_tasksets[0].workflow_args"
TOOLS = f"{ROLLOUT}.multi_turn.tool_config_path=tools.yaml"


def test_tools_and_limits_are_arguments_of_every_taskset() -> None:
    found = from_keys(TOOLS, f"{ROLLOUT}.multi_turn.max_user_turns=3")
    assert missing(found) == []
    assert value(found, WORKFLOW) == "verl_agent_workflow"
    for args in (ARGS, EVAL_ARGS):
        assert value(found, f"{args}.multi_turn.tool_config_path") == "tools.yaml"
        assert value(found, f"{args}.multi_turn.max_user_turns") == 3


@pytest.mark.parametrize(
    "given",
    [
        f"{ROLLOUT}.multi_turn.enable=True",
        f"{ROLLOUT}.multi_turn.function_tool_path=tools.py",
        f"{ROLLOUT}.agent.agent_loop_config_path=loops.yaml",
        f"{ROLLOUT}.agent.default_agent_loop=tool_agent",
    ],
)
def test_each_of_these_keys_has_agents(given: str) -> None:
    found = from_keys(given)
    assert value(found, WORKFLOW) == "verl_agent_workflow"
    assert missing(found) == []


@pytest.mark.parametrize(
    "given",
    [
        f"{ROLLOUT}.multi_turn.enable=False",
        f"{ROLLOUT}.multi_turn.format=hermes",
        f"{ROLLOUT}.multi_turn.max_user_turns=3",
        f"{ROLLOUT}.agent.default_agent_loop=single_turn_agent",
    ],
)
def test_without_tools_there_is_one_turn(given: str) -> None:
    found = from_keys(given)
    assert value(found, WORKFLOW) == "simple_workflow"
    assert missing(found) == []
    assert any(given in line and "one turn" in line for line in found.report)


def test_rows_without_a_loop_are_pointed_out_where_they_would_have_one_turn() -> None:
    text = "rows without a column `agent_name` have one turn"
    assert any(text in line for line in from_keys(TOOLS).report)
    named = from_keys(TOOLS, f"{ROLLOUT}.agent.default_agent_loop=tool_agent")
    assert not any(text in line for line in named.report)


@pytest.mark.parametrize(
    "given",
    [
        f"{ROLLOUT}.multi_turn.interaction_config_path=users.yaml",
        f"{ROLLOUT}.agent.agent_loop_manager_class=my.Manager",
        f"{ROLLOUT}.multi_turn.no_such_key=1",
    ],
)
def test_what_verls_loops_do_not_run_is_without_counterpart(given: str) -> None:
    assert any(given.partition("=")[0] in line for line in missing(from_keys(TOOLS, given)))


def test_the_way_back_names_the_tools_again() -> None:
    found = from_keys(TOOLS, f"{ROLLOUT}.agent.default_agent_loop=tool_agent")
    command = verl_command(found.yaml)
    assert TOOLS in command
    assert f"{ROLLOUT}.agent.default_agent_loop=tool_agent" in command
    assert "workflow" not in command


def test_remax_has_a_greedy_answer_of_each_task(tmp_path: Path) -> None:
    found = from_keys("algorithm.adv_estimator=remax", f"{ROLLOUT}.n=4")
    assert value(found, WORKFLOW) == "greedy_baseline_workflow"
    path = tmp_path / "run.yaml"
    path.write_text(found.yaml)
    assert not [error for error in check_file(path).errors if "reward_baseline" in error]
    path.write_text(found.yaml.replace("greedy_baseline_workflow", "simple_workflow"))
    (error,) = [error for error in check_file(path).errors if "reward_baseline" in error]
    assert "name `greedy_baseline_workflow` or one of your own" in error


START = "python3 -m recipe.mine.main_mine"
MAIN = """
@hydra.main(config_path="config", config_name="mine_trainer", version_base=None)
def main(config): ...
"""


def _checkout(tmp_path: Path, keys: str) -> Path:
    (tmp_path / "recipe/mine/config").mkdir(parents=True)
    (tmp_path / "recipe/mine/main_mine.py").write_text(MAIN)
    (tmp_path / "recipe/mine/config/mine_trainer.yaml").write_text(keys)
    return tmp_path / "recipe/mine"


KEYS = """
hydra:
  searchpath: [file://verl/trainer/config]
defaults: [ppo_trainer, _self_]
data: {max_prompt_length: 77, max_response_length: 78}
"""


def test_the_configuration_that_a_program_names_is_read_below_the_scripts_keys(
    tmp_path: Path,
) -> None:
    folder = _checkout(tmp_path, KEYS)
    found = converted(f"{START} data.max_response_length=9", folder)
    assert value(found, "model.max_prompt_tokens") == 77
    assert value(found, "model.max_response_tokens") == 9
    assert not any("included files are not read" in line for line in found.report)


def test_a_name_on_the_command_line_is_looked_for_in_the_programs_folder(tmp_path: Path) -> None:
    folder = _checkout(tmp_path, KEYS)
    (folder / "config/other.yaml").write_text("data: {max_prompt_length: 66}")
    found = converted(f"{START} --config-name=other data.max_response_length=9", folder)
    assert value(found, "model.max_prompt_tokens") == 66
    assert not any("config_name" in line for line in missing(found))


def test_a_file_that_includes_others_says_so(tmp_path: Path) -> None:
    folder = _checkout(tmp_path, KEYS.replace("ppo_trainer, _self_", "_self_, my_part"))
    found = converted(f"{START} data.max_response_length=9", folder)
    assert any("included files are not read" in line for line in found.report)


@pytest.mark.parametrize(
    ("program", "is_known"),
    [
        ("verl.trainer.main_ppo", True),
        ("verl.experimental.fully_async_policy.fully_async_main", True),
        ("recipe.dapo.main_dapo", True),
        ("recipe.flowrl.main_flowrl", False),
        ("main_gkd", False),
    ],
)
def test_what_a_program_outside_of_verl_adds_is_not_passed_over(
    program: str, is_known: bool, tmp_path: Path
) -> None:
    keys = "data.max_prompt_length=7 data.train_files=a data.val_files=b algorithm.gamma=1"
    found = converted(f"torchrun --nnodes=1 -m {program} {keys}", tmp_path)
    lines = [line for line in missing(found) if f"program={program}" in line]
    assert lines == [] if is_known else lines


@as_subtests(
    ("start", "programs"),
    [
        ("python3 main_ppo.py", ["main_ppo"]),
        ("python3 -u own/train.py", ["own.train"]),
        ("python3 verl/trainer/main_ppo.py", []),
        ("python3 -m verl.trainer.main_ppo custom_reward_function.path=own.py", []),
        ("$START custom_reward_function.path=own.py", []),
    ],
)
def test_a_file_of_the_users_own_that_starts_training_is_a_program(
    start: str, programs: list[str], tmp_path: Path
) -> None:
    keys = "data.train_files=a data.val_files=b algorithm.gamma=1 data.train_batch_size=8"
    found = converted(f"{start} {keys}", tmp_path)
    lines = [line.partition("program=")[2] for line in missing(found) if "program=" in line]
    assert [line.partition(" ")[0] for line in lines] == programs


def test_a_file_in_an_option_of_the_launcher_is_no_program(tmp_path: Path) -> None:
    launcher = "ray job submit --runtime-env=$HOME/verl/trainer/runtime_env.yaml -- python3"
    keys = "data.train_files=a data.val_files=b algorithm.gamma=1 data.seed=1"
    found = converted(f"{launcher} -m recipe.flowrl.main_flowrl {keys}", tmp_path)
    assert any("program=recipe.flowrl.main_flowrl" in line for line in missing(found))
    assert not any("is not key=value" in line for line in found.report)


def test_a_reference_to_a_section_copies_its_keys(tmp_path: Path) -> None:
    keys = """
    reward_model:
      reward_manager: dapo
      reward_kwargs: {overlong_buffer_cfg: "${reward_model.overlong_buffer}"}
      overlong_buffer: {enable: False, len: 0}
    """
    folder = _checkout(tmp_path, keys)
    script = f"{START} reward_model.overlong_buffer.enable=True reward_model.overlong_buffer.len=7"
    found = converted(f"{script} data.max_response_length=20", folder)
    arguments = "buffer.explorer_input.taskset.reward_fn_args"
    assert value(found, f"{arguments}.enable_overlong_penalty") is True
    assert value(found, f"{arguments}.cache_length") == 7
    assert [line for line in missing(found) if "overlong" in line] == []


def test_the_older_reward_manager_decides_as_in_verl(tmp_path: Path) -> None:
    reward = "buffer.explorer_input.default_reward_fn_type"
    folder = _checkout(tmp_path, "reward: {reward_manager: {name: dapo}}")
    assert value(converted(f"{START} data.seed=1", folder), reward) == "math_dapo_reward"
    older = converted(f"{START} data.seed=1 reward_model.reward_manager=naive", folder)
    assert reward not in flat(older.values)
