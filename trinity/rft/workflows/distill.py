"""Workflows of on-policy distillation as Trinity-RFT has them, to build on."""

from typing import Any

from trinity.errors import UserError
from trinity.rft.workflows.math import verify_math_answer
from trinity.rft.workflows.workflow import QuestionWorkflow
from trinity.types import Experience
from trinity.workflows.math_boxed_workflow import BOXED
from trinity.workflows.task import Task


class OnPolicyDistillWorkflow(QuestionWorkflow):
    """Each answer carries the log-probabilities of the first auxiliary model, the teacher.

    A subclass may define `compute_reward`; otherwise rewards are 0.
    """

    is_async = True
    can_reset = True
    can_repeat = True

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        if not self.auxiliary_model_wrappers:
            raise UserError(
                f"{type(self).__name__} needs a teacher: give one with the policy's tokenizer in "
                "`explorer.auxiliary_models`"
            )
        self.teacher_model = self.auxiliary_model_wrappers[0]
        self.reset(self.task)

    def reset(self, task: Task) -> None:
        """Takes the task."""
        self.take(task)
        self.temperature = task.workflow_args.get("temperature", 1.0)

    def compute_reward(self, response: Experience) -> float:
        """Returns the reward of an answer, which is not trained on."""
        del response
        return 0.0

    async def run_async(self) -> list[Experience]:
        """Returns an experience for each run."""
        answers = await self.model.chat_async(self.format_messages(), **self.rollout_args)
        for i, answer in enumerate(answers):
            tokens = answer.sequence.tokens.tolist()
            scores = await self.teacher_model.logprobs_async(tokens, temperature=self.temperature)
            answer.teacher_logprobs = scores[answer.prompt_length - 1 :]
            answer.reward = self.compute_reward(answer)
            gaps = answer.sequence.rollout_logprobs - scores[answer.prompt_length - 1 :].numpy()
            answer.metrics["kl_divergence"] = float(gaps.sum())
            answer.eid.run = self.run_id_base + i
        return answers


class OnPolicyDistillMathWorkflow(OnPolicyDistillWorkflow):
    """A mathematical question; the reward is the accuracy of the boxed answer."""

    def format_messages(self) -> list[dict[str, Any]]:
        """Returns the question with instructions."""
        return [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": f"{self.task_desc}\n{BOXED}"},
        ]

    def compute_reward(self, response: Experience) -> float:
        """Returns 1 for a right answer."""
        accuracy, _ = verify_math_answer(response.response_text, self.truth)
        response.metrics["accuracy"] = accuracy
        return accuracy
