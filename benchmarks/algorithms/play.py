"""Answers to problems: in one turn, or in two with a tool between them; and whether they are right.

player = TaskPlayer(job)
rollouts = player.play(sampler, job.train, [0, 0, 1], generator)
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from benchmarks.algorithms.job import EncodedProblems, IntArray, TrialJob, tool_tokens
from benchmarks.algorithms.rollout import Rollout, Sampler
from benchmarks.algorithms.tasks import ToolGame, is_same_end

HELD_OUT_SEED = 7
"""Seed of the answers to held-out problems, one for all trials: equal weights have equal curves.

All curves share its luck: the start of `edits` has 0.178 by this seed, and 0.159 by 40 others.
"""


class TaskPlayer:
    """Plays a job's task with whatever weights the sampler has."""

    def __init__(self, job: TrialJob) -> None:
        from transformers import AutoTokenizer

        self._job = job
        self._game = job.task.game if job.task is not None else None
        self._tokenizer = AutoTokenizer.from_pretrained(job.untrained)
        self._stop = tool_tokens(job.untrained)[0] if self._game is not None else None

    def play(
        self,
        sampler: Sampler,
        problems: EncodedProblems,
        which: Sequence[int],
        generator: torch.Generator | None = None,
    ) -> list[Rollout]:
        """Answers those problems; without a generator with the likeliest tokens."""
        longest = self._job.max_response_tokens
        prompts_NP = problems.prompts_NP[np.asarray(which)]
        if self._game is None:
            return sampler.sample(prompts_NP, generator, max_tokens=longest)
        first = sampler.sample(
            prompts_NP, generator, max_tokens=self._game.call_length, stop=self._stop
        )
        asking = [number for number, rollout in enumerate(first) if self._asks(rollout, self._game)]
        if not asking:
            return first
        told = [self._told(first[number], problems, which[number]) for number in asking]
        longer = [
            np.concatenate([first[number].prompt, first[number].tokens, tool])
            for number, tool in zip(asking, told, strict=True)
        ]
        left = longest - self._game.call_length - len(told[0])
        second = sampler.sample(np.stack(longer), generator, max_tokens=left)
        played = list(first)
        for number, tool, rollout in zip(asking, told, second, strict=True):
            played[number] = joined(first[number], tool, rollout)
        return played

    def _asks(self, rollout: Rollout, game: ToolGame) -> bool:
        return len(rollout.tokens) == game.call_length and rollout.tokens[-1] == self._stop

    def _told(self, rollout: Rollout, problems: EncodedProblems, problem: int) -> IntArray:
        assert self._game is not None
        said = self._game.told(problems.texts[problem]["question"], self._text(rollout))
        tokens: list[int] = self._tokenizer(said)["input_ids"]
        return np.array(tokens, dtype=np.int64)

    def _text(self, rollout: Rollout) -> str:
        text: str = self._tokenizer.decode(rollout.tokens, skip_special_tokens=True)
        return text

    def is_right(self, rollout: Rollout, problems: EncodedProblems, problem: int) -> bool:
        """Returns True if an answer has ended and is right."""
        answer = problems.answers[problem]
        if self._job.task is None:
            return tuple(rollout.tokens.tolist()) == answer
        if not len(rollout.tokens) or rollout.tokens[-1] != answer[-1]:
            return False
        if self._game is not None and rollout.is_own.all():
            return False
        return is_same_end(self._text(rollout), problems.texts[problem]["answer"])

    def accuracy(self, sampler: Sampler, problems: EncodedProblems) -> float:
        """Share of the problems that are answered right: by the likeliest tokens in addition.

        In the other tasks by samples, which training rewards, always drawn with the same chance:
        where the start's likeliest answers are right, those have nothing left to learn.
        """
        which = range(len(problems.rows))
        is_sampled = self._job.task is not None
        generator = torch.Generator().manual_seed(HELD_OUT_SEED) if is_sampled else None
        rollouts = self.play(sampler, problems, which, generator)
        pairs = zip(rollouts, which, strict=True)
        return float(
            np.mean([self.is_right(rollout, problems, number) for rollout, number in pairs])
        )


def joined(first: Rollout, tool: IntArray, second: Rollout) -> Rollout:
    """Returns both turns with the tool's answer between them."""
    said = np.zeros(len(tool))
    return replace(
        first,
        tokens=np.concatenate([first.tokens, tool, second.tokens]),
        logprobs=np.concatenate([first.logprobs, said, second.logprobs]).astype(np.float32),
        is_own=np.concatenate([first.is_own, said > 0, second.is_own]),
        swaps=np.concatenate([first.swaps, np.zeros(len(tool), dtype=np.int64), second.swaps]),
    )
