"""A mathematical question, scored by a reward that sees the whole chat."""

from typing import ClassVar

from trinity.workflows.math_workflow import MathWorkflow


class MathRMWorkflow(MathWorkflow):
    """Prompts as `math_workflow` does; the taskset names the reward, such as a reward model's.

    Such a reward may take `messages`, the prompt, and `ground_truth`, the truth.
    """

    default_reward: ClassVar[str | None] = None
