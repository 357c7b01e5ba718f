"""Answers that are compared with each other by a judge (RULER), one group a call."""

import math
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from trinity.errors import UserError
from trinity.rewards.awaiting import complete
from trinity.rewards.score import as_parts
from trinity.rft.workflows.workflow import SimpleWorkflow, prepare_math_task
from trinity.types import Experience, JsonValue
from trinity.workflows.task import Task

INSTRUCTIONS = """\
You compare answers to one question and score each of them. You are given the question and the \
numbered answers. Judge how well each answer resolves the question, in comparison to the others. \
Reason briefly. Then give one score from 0 (wrong) to 1 (right and well reasoned) for each answer, \
in the answers' order, in this form and nothing after it:
<scores>number, number, ...</scores>"""
_SCORES = re.compile(r"<scores>([^<]*)</scores>")
JUDGE_SHARE = 0.2


class MathRULERWorkflow(SimpleWorkflow):
    """Rewards the answers of a group with the scores that the first auxiliary model gives them.

    The taskset's reward, `math_reward` by default, is measured as `gold_reward` and not trained
    on. Without scores for all answers, the rewards and the metric `judge_success` are 0.
    """

    def reset(self, task: Task) -> None:
        """Takes the task; sets the default reward and system prompt if they are missing."""
        prepare_math_task(task)
        super().reset(task)

    def run(self) -> list[Experience]:
        """Returns an experience for each run."""
        answers = self.model.chat(self.format_messages(), **self.rollout_args)
        self._measure(answers)
        reply = self._judge().chat(self.judge_messages(answers))[0]
        return _with_scores(answers, parse_scores(reply.response_text, len(answers)))

    def judge_messages(self, answers: Sequence[Experience]) -> list[dict[str, Any]]:
        """Returns the judge's prompt."""
        numbered = [
            f"Answer {number}:\n{answer.response_text}" for number, answer in enumerate(answers, 1)
        ]
        text = "\n\n".join([f"Question:\n{self.task_desc}", *numbered])
        return [
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": f"{text}\n\nGive {len(answers)} scores."},
        ]

    def _judge(self) -> Any:
        if not self.auxiliary_model_wrappers:
            raise UserError(
                f"{type(self).__name__} needs another model as the judge: give one in "
                "`explorer.auxiliary_models`"
            )
        return self.auxiliary_model_wrappers[0]

    def _measure(self, answers: Sequence[Experience]) -> list[float]:
        """Returns the taskset's rewards and notes them as metrics."""
        rewards = []
        for i, answer in enumerate(answers):
            given = complete(self.reward_fn(response=answer.response_text, truth=self.truth))
            parts = as_parts(given, type(self.reward_fn).__name__, sums_all=True)
            rewards.append(sum(parts.values()))
            answer.metrics |= {**parts, "gold_reward": rewards[-1]}
            answer.eid.run = self.run_id_base + i
        return rewards


class AsyncMathRULERWorkflow(MathRULERWorkflow):
    """The asynchronous form of `MathRULERWorkflow`."""

    is_async = True

    async def run_async(self) -> list[Experience]:
        """Returns an experience for each run."""
        answers = await self.model.chat_async(self.format_messages(), **self.rollout_args)
        self._measure(answers)
        [reply] = await self._judge().chat_async(self.judge_messages(answers))
        return _with_scores(answers, parse_scores(reply.response_text, len(answers)))


class MathTrainableRULERWorkflow(MathRULERWorkflow):
    """The policy judges its own answers, and learns to judge as well.

    A share of the tasks (`judge_share` in workflow_args, 0.2) trains judging: each run judges the
    same answers, and its reward is 1 minus its mean distance to the taskset's rewards. All other
    tasks train answers, rewarded with the scores of one judgement.
    """

    usual_args: ClassVar[Mapping[str, JsonValue]] = {"judge_share": JUDGE_SHARE}

    def run(self) -> list[Experience]:
        """Returns an experience for each run: all answers, or all judgements."""
        answers = self.model.chat(self.format_messages(), **self.rollout_args)
        gold = self._measure(answers)
        messages, size = self.judge_messages(answers), len(answers)
        if not self._trains_judging():
            [judgement] = self.model.chat(messages, **{**self.rollout_args, "n": 1})
            return _with_scores(answers, parse_scores(judgement.response_text, size))
        judgements = self.model.chat(messages, **self.rollout_args)
        for i, judgement in enumerate(judgements):
            scores = parse_scores(judgement.response_text, size)
            judgement.reward = 0.0 if scores is None else 1 - _distance(scores, gold)
            judgement.metrics["judge_success"] = float(scores is not None)
            judgement.eid.run = self.run_id_base + i
        return judgements

    def _trains_judging(self) -> bool:
        """Decides by the task and its explore step, so that every attempt decides the same."""
        share = float(self.task.workflow_args.get("judge_share", JUDGE_SHARE))
        return random.Random(f"{self.task.batch_id}/{self.task.task_id}").random() < share


def parse_scores(judgement: str, size: int) -> list[float] | None:
    """Returns the last scores in a judge's reply, cut to 0 to 1; None unless there are `size`."""
    found = _SCORES.findall(judgement)
    try:
        scores = [float(score) for score in found[-1].split(",")] if found else []
    except ValueError:
        return None
    if len(scores) != size or any(math.isnan(score) for score in scores):
        return None
    return [min(max(score, 0.0), 1.0) for score in scores]


def _distance(scores: Sequence[float], gold: Sequence[float]) -> float:
    """Returns the mean distance of scores to rewards, which are scaled to 0 to 1."""
    low, high = min([*gold, 0.0]), max([*gold, 1.0])
    scaled = [(reward - low) / (high - low) for reward in gold]
    return sum(abs(a - b) for a, b in zip(scores, scaled, strict=True)) / len(scaled)


def _with_scores(answers: list[Experience], scores: list[float] | None) -> list[Experience]:
    for i, answer in enumerate(answers):
        answer.reward = 0.0 if scores is None else scores[i]
        answer.metrics["judge_success"] = float(scores is not None)
    return answers
