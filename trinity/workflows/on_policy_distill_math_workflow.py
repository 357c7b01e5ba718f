"""A mathematical question with Qwen2.5-Math's evaluation prompt, and a teacher's logprobs."""

from typing import ClassVar

from trinity.workflows.math_eval_workflow import SYSTEM_PROMPT
from trinity.workflows.on_policy_distill_workflow import OnPolicyDistillWorkflow


class OnPolicyDistillMathWorkflow(OnPolicyDistillWorkflow):
    """Like `on_policy_distill_workflow`; scored with `math_boxed_reward` by default."""

    default_system_prompt: ClassVar[str | None] = SYSTEM_PROMPT
    default_reward: ClassVar[str | None] = "math_boxed_reward"
