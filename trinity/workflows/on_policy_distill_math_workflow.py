"""A mathematical question, asked as Qwen2.5-Math's evaluation does, and a teacher's view of it."""

from typing import ClassVar

from trinity.workflows.math_eval_workflow import SYSTEM_PROMPT
from trinity.workflows.on_policy_distill_workflow import OnPolicyDistillWorkflow


class OnPolicyDistillMathWorkflow(OnPolicyDistillWorkflow):
    """As `on_policy_distill_workflow`; scored with `math_boxed_reward` unless told otherwise."""

    default_system_prompt: ClassVar[str | None] = SYSTEM_PROMPT
    default_reward: ClassVar[str | None] = "math_boxed_reward"
