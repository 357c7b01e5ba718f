"""Names of workflows and rewards: paths of the built-in ones, and advice for the missing ones.

Every name that Trinity-RFT registers is in one of the tables, so that a file written for it either
runs or fails with advice.
"""

from collections.abc import Mapping

_WORKFLOWS = "trinity.workflows"
_ASYNC_TOO: Mapping[str, str] = {
    "simple_workflow": f"{_WORKFLOWS}.simple_workflow.SimpleWorkflow",
    "math_workflow": f"{_WORKFLOWS}.math_workflow.MathWorkflow",
    "math_boxed_workflow": f"{_WORKFLOWS}.math_boxed_workflow.MathBoxedWorkflow",
    "math_eval_workflow": f"{_WORKFLOWS}.math_eval_workflow.MathEvalWorkflow",
    "math_rm_workflow": f"{_WORKFLOWS}.math_rm_workflow.MathRMWorkflow",
}
"""These names with the prefix `async_` are the same classes: they all run on the event loop."""

WORKFLOW_PATHS: Mapping[str, str] = {
    **_ASYNC_TOO,
    **{f"async_{name}": path for name, path in _ASYNC_TOO.items()},
    "frozen_lake_workflow": f"{_WORKFLOWS}.frozen_lake_workflow.FrozenLakeWorkflow",
    "on_policy_distill_workflow": (
        f"{_WORKFLOWS}.on_policy_distill_workflow.OnPolicyDistillWorkflow"
    ),
    "on_policy_distill_math_workflow": (
        f"{_WORKFLOWS}.on_policy_distill_math_workflow.OnPolicyDistillMathWorkflow"
    ),
    "rubric_judge_workflow": f"{_WORKFLOWS}.rubric_judge_workflow.RubricJudgeWorkflow",
    "sudoku_workflow": f"{_WORKFLOWS}.sudoku_workflow.SudokuWorkflow",
    "tool_call_workflow": f"{_WORKFLOWS}.tool_call_workflow.ToolCallWorkflow",
}

TEACHING_WORKFLOWS = frozenset({"on_policy_distill_workflow", "on_policy_distill_math_workflow"})
"""They ask the first auxiliary model for the log-probabilities of the policy's tokens."""

REWARD_PATHS: Mapping[str, str] = {
    "accuracy_reward": "trinity.rewards.accuracy_reward.AccuracyReward",
    "countdown_reward": "trinity.rewards.countdown_reward.CountdownReward",
    "exact_match_reward": "trinity.rewards.exact_match_reward.ExactMatchReward",
    "format_reward": "trinity.rewards.format_reward.FormatReward",
    "math_boxed_reward": "trinity.rewards.math_boxed_reward.MathBoxedReward",
    "math_dapo_reward": "trinity.rewards.math_dapo_reward.MathDapoReward",
    "math_reward": "trinity.rewards.math_reward.MathReward",
}


def _to_write(base: str) -> str:
    return f"write it as a plugin, a subclass of {_WORKFLOWS}.{base} (docs/workflows.md)"


_TRANSCRIPT = _to_write("multi_turn.MultiTurnWorkflow")
_STEPS = _to_write("step_wise.StepWiseRewardWorkflow")
_AGENT = (
    _to_write("Workflow")
    + ", in which the agent has the client of `self.model.get_openai_async_client()`"
)
_JUDGED = _to_write("Workflow") + ", which asks `self.auxiliary_models`"
_AGENTSCOPE = f"it runs agents of the package agentscope, which no service installs: {_AGENT}"
_ALFWORLD = "it plays in ALFWorld, an environment that no service installs"
_IMAGES = (
    "it asks about images or videos, and prompts are text alone: leave them out, or "
    "run the taskset elsewhere"
)

ABSENT_WORKFLOWS: Mapping[str, str] = {
    "agentscope_react_math_workflow": _AGENTSCOPE,
    "agentscope_react_workflow": _AGENTSCOPE,
    "agentscope_v1_react_search_workflow": _AGENTSCOPE,
    "agentscope_workflow_adapter": _AGENTSCOPE,
    "agentscope_workflow_adapter_v1": _AGENTSCOPE,
    "agentscopev0_react_math_workflow": _AGENTSCOPE,
    "alfworld_workflow": f"{_ALFWORLD}: {_TRANSCRIPT}",
    "as_react_workflow": _AGENTSCOPE,
    "async_math_ruler_workflow": f"it has a judge compare the answers of a group: {_JUDGED}",
    "async_simple_mm_workflow": _IMAGES,
    "email_search_workflow": f"it searches a database of e-mails with agentscope: {_AGENT}",
    "intercode_sql_workflow": f"it runs SQL in containers of InterCode: {_TRANSCRIPT}",
    "math_ruler_workflow": f"it has a judge compare the answers of a group: {_JUDGED}",
    "math_trainable_ruler_workflow": f"it has the policy compare its own answers: {_JUDGED}",
    "RAFT_alfworld_workflow": f"{_ALFWORLD}: {_TRANSCRIPT}",
    "RAFT_reflect_alfworld_workflow": f"{_ALFWORLD}: {_TRANSCRIPT}",
    "rubric_judge_openai_workflow": f"it asks a judge behind an address outside: {_JUDGED}",
    "sciworld_workflow": f"it plays in ScienceWorld, which no service installs: {_TRANSCRIPT}",
    "simple_mm_workflow": _IMAGES,
    "step_wise_alfworld_workflow": f"{_ALFWORLD}: {_STEPS}",
    "webshop_workflow": f"it plays in WebShop, which no service installs: {_TRANSCRIPT}",
}
"""The reason why each is missing, and what to do instead."""
