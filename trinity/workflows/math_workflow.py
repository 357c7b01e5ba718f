"""A mathematical question, answered after reasoning."""

from typing import ClassVar

from trinity.workflows.simple_workflow import SimpleWorkflow

SYSTEM_PROMPT = """\
You solve mathematical problems. First reason step by step between <think> and </think>. Then give \
nothing but the final result between <answer> and </answer>. Your whole reply looks like this:
<think>
the reasoning
</think>
<answer>
the result
</answer>"""


class MathWorkflow(SimpleWorkflow):
    """Requests reasoning and result in tags; scored with `math_reward` by default."""

    default_system_prompt: ClassVar[str | None] = SYSTEM_PROMPT
    default_reward: ClassVar[str | None] = "math_reward"
