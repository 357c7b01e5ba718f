"""Chooses the workflow: veRL's agent loops and tools as they are, a greedy baseline, or neither."""

from collections.abc import Iterator

from trinity.verl.rules.rewards import INPUT, tasksets_of
from trinity.verl.settings import VerlSetting
from trinity.verl.table.rollout import AGENT, MULTI_TURN
from trinity.verl.work import Conversion

ROLLOUT = "actor_rollout_ref.rollout"
AGENT_WORKFLOW = "verl_agent_workflow"
SINGLE_TURN = "single_turn_agent"
_FILES = (
    f"{ROLLOUT}.multi_turn.tool_config_path",
    f"{ROLLOUT}.multi_turn.function_tool_path",
    f"{ROLLOUT}.agent.agent_loop_config_path",
)
_WORKFLOW = f"{INPUT}.default_workflow_type"
_ONE_TURN = "without tools and agent loops there is one turn, in veRL, too"


def convert_agents(work: Conversion) -> None:
    """Converts `multi_turn` and `agent`, which hold for every taskset."""
    settings = list(_settings(work))
    if _has_agents(work):
        work.put(_WORKFLOW, AGENT_WORKFLOW, "veRL's agent loops and tools, as they are")
        for setting in settings:
            _put_argument(work, setting)
        _advise(work)
        return
    if work.draft.get("algorithm.advantage_fn") == "remax":
        why = "the reward of a greedy answer to each task"
        work.put(_WORKFLOW, "greedy_baseline_workflow", "algorithm.adv_estimator=remax", why)
    for setting in settings:
        work.settings.take(setting.key)
        work.report.not_needed.append((setting, _ONE_TURN))


def _settings(work: Conversion) -> Iterator[VerlSetting]:
    """Settings that veRL's loops read."""
    for section, names in (("multi_turn", MULTI_TURN), ("agent", AGENT)):
        for name in names:
            key = f"{ROLLOUT}.{section}.{name}"
            if work.settings.peek(key) is not None:
                yield next(setting for setting in work.settings.all() if setting.key == key)


def _has_agents(work: Conversion) -> bool:
    """True if tools or a loop other than the single turn are named, or several turns enabled."""
    named = work.settings.peek(f"{ROLLOUT}.agent.default_agent_loop")
    return (
        any(work.settings.peek(key) for key in _FILES)
        or work.settings.peek(f"{ROLLOUT}.multi_turn.enable") is True
        or named not in (None, SINGLE_TURN)
    )


def _put_argument(work: Conversion, setting: VerlSetting) -> None:
    work.settings.take(setting.key)
    name = setting.key.removeprefix(f"{ROLLOUT}.")
    for taskset in tasksets_of(work):
        work.put(f"{taskset}.workflow_args.{name}", setting.value, setting)


def _advise(work: Conversion) -> None:
    work.report.advice.append(
        f"`{AGENT_WORKFLOW}` runs veRL's own agent loops and tools: the package `verl`, the "
        "files named in `workflow_args` and their imports must be installed on explorer hosts"
    )
    named = work.settings.peek(f"{ROLLOUT}.agent.default_agent_loop")
    if named in (None, SINGLE_TURN):
        work.report.advice.append(
            "rows without a column `agent_name` have one turn and no tools, as in veRL: give "
            "`workflow_args.agent.default_agent_loop: tool_agent` if they are to have them"
        )
