"""Checks that a model can be served as configured."""

from collections.abc import Sequence

from trinity.config.plan import StagePlan
from trinity.errors import UserError


def check_alone(stages: Sequence[StagePlan]) -> None:
    """Raises UserError if a serving stage, which never ends, is not the only stage."""
    if len(stages) > 1 and any(stage.mode == "serve" for stage in stages):
        names = ", ".join(f"`{stage.name}`" for stage in stages)
        raise UserError(
            f"`mode: serve` is one stage, and this file has {names}: write a file of the same "
            "`project`, `group` and `name` with `mode: serve` and without `stages`"
        )


def check_tools(stage: StagePlan) -> None:
    """Raises UserError if tool calls are enabled but cannot be parsed."""
    rollout = stage.config.explorer.rollout_model
    if rollout.enable_auto_tool_choice and rollout.tool_call_parser is None:
        raise UserError(
            f"stage `{stage.name}`: `explorer.rollout_model.tool_call_parser` is missing: "
            "`enable_auto_tool_choice: true` needs it to find calls in responses, such as `hermes`"
        )


def check_serving(stage: StagePlan) -> None:
    """Checks a serving stage; raises UserError naming the keys that do not go together."""
    explorer = stage.config.explorer
    if stage.mode != "serve":
        return
    running, engines = explorer.min_running_model_num, explorer.rollout_model.engine_num
    if running > engines:
        raise UserError(
            f"stage `{stage.name}`: `explorer.min_running_model_num: {running}` is more than there "
            f"are engines (`explorer.rollout_model.engine_num: {engines}`): give {engines} or less"
        )
