"""A mathematical question that is scored by a reward which sees the whole chat."""

from typing import ClassVar

from trinity.workflows.math_workflow import MathWorkflow


class MathRMWorkflow(MathWorkflow):
    """Asks as `math_workflow` does; the taskset names the reward, as a reward model's.

    Such a reward may take `messages`, what was asked, and `ground_truth`, the truth.
    """

    default_reward: ClassVar[str | None] = None
