"""Finds rewards and auxiliary models that users' workflows never call, after the first step."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from trinity.config.plan.stage_plan import StagePlan
from trinity.plugins import WORKFLOWS

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PartUse:
    """Counts the runs of each taskset until an explore step's number of them have ended.

    use = PartUse(plan)
    use.after_run("train", called_reward=False, called_models=[False])

    `trinity config check` judges built-in workflows; those of users are watched here.
    """

    plan: StagePlan
    _num_runs: Counter[str] = field(default_factory=Counter)
    _scores_itself: set[str] = field(default_factory=set)
    """Tasksets with a run that did not call its reward."""
    _called: set[str] = field(default_factory=set)

    def after_run(
        self, taskset: str, *, called_reward: bool | None, called_models: Sequence[bool]
    ) -> list[str]:
        """Returns and logs a sentence for each part without a call, once enough runs have ended.

        `called_reward` is None for a run without a reward, or with one that cannot be watched.
        """
        self._num_runs[taskset] += 1
        if called_reward is False:
            self._scores_itself.add(taskset)
        if called_reward:
            self._called.add(taskset)
        self._called.update(name for name, called in self._models(called_models) if called)
        if self._num_runs[taskset] != self._num_watched:
            return []
        texts = [] if self._is_built_in(taskset) else list(self._reward(taskset))
        if self._has_seen_all():
            texts += self._unasked_models(called_models)
        for text in texts:
            logger.warning(text)
        return texts

    def _has_seen_all(self) -> bool:
        """True if every taskset has had its runs, and a user's workflow is among them."""
        trained = self.plan.tasksets or self.plan.eval_tasksets
        names = {own.name for own in (*trained, *self.plan.eval_tasksets)}
        return (
            all(self._num_runs[own.name] >= self._num_watched for own in trained)
            and all(self._num_runs[name] for name in names)
            and not all(map(self._is_built_in, names))
        )

    @property
    def _num_watched(self) -> int:
        return self.plan.config.buffer.batch_size * self.plan.algorithm.repeat_times

    def _is_built_in(self, name: str) -> bool:
        tasksets = (*self.plan.tasksets, *self.plan.eval_tasksets)
        own = next(taskset for taskset in tasksets if taskset.name == name)
        return own.workflow in WORKFLOWS.builtins and not own.format.workflow_key

    def _reward(self, taskset: str) -> Iterator[str]:
        if taskset in self._scores_itself - self._called:
            yield (
                f"the reward of taskset `{taskset}` was called by none of its first "
                f"{self._num_watched} runs: its workflow scores by itself, so leave out "
                "`default_reward_fn_type`, or call `self.task.reward`"
            )

    def _unasked_models(self, called_models: Sequence[bool]) -> Iterator[str]:
        for name, _ in self._models(called_models):
            if name not in self._called:
                yield (
                    f"`explorer.{name}` was asked by none of the first "
                    f"{self._num_runs.total()} runs and keeps its memory and GPUs: leave it out "
                    "if neither a workflow nor a reward calls it"
                )

    @staticmethod
    def _models(called: Sequence[bool]) -> list[tuple[str, bool]]:
        return [(f"auxiliary_models[{place}]", each) for place, each in enumerate(called)]
