"""One task's samples in an explore step, and which of them are compared with one another."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trinity.operators.rollouts import Content
from trinity.types import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the statistics of a group need of every sample."""

    experience_id: str
    run: int
    reward: float | None
    finish_reason: str
    response_length: int = 0

    @property
    def score(self) -> float:
        """The reward that counts: a prompt that was too long has 0, its mask keeps it out of the
        loss."""
        if self.finish_reason == FinishReason.PROMPT_TRUNCATED or self.reward is None:
            return 0.0
        return self.reward

    @property
    def is_truncated(self) -> bool:
        """Whether the token limit ended the response."""
        return self.finish_reason == FinishReason.LENGTH

    @property
    def why_not_compared(self) -> str:
        """Why the sample says nothing about the policy; empty if it does."""
        if self.finish_reason == FinishReason.ABORT:
            return "it was cut off from outside"
        if self.reward is None and self.finish_reason != FinishReason.PROMPT_TRUNCATED:
            return "its reward is still awaited"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What only the whole sample says; functions that need it ask for it."""

    mean_logprob: float = math.nan
    step_reward: float = math.nan
    state: str = ""
    """Equal texts are equal states; empty is unknown."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """What lies under the keys that were asked for, as far as it is a number."""
    content: Content | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Samples in order of run and step."""

    explore_step: int
    position: int
    samples: Sequence[Sample]

    @property
    def compared(self) -> list[Sample]:
        """Those that the advantage function sees."""
        return [sample for sample in self.samples if not sample.why_not_compared]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRow:
    """A row to be trained on: a revision of a sample, or with an ordinal above 0 a copy of it."""

    parent_id: str
    ordinal: int
    advantage: float
    reward: float | None = None
    """Where an operator has changed it."""
    is_masked: bool = False
    """Whether none of its tokens is trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A sample that is not trained on."""

    experience_id: str
    reason: str


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What comes of a group, or the error that came instead."""

    rows: list[NewRow] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    error: str = ""
    function: str = ""
    """The operator that the error is of; empty for the advantage function."""

    @classmethod
    def begun(cls, group: Group) -> "Outcome":
        """With the samples that no advantage function sees."""
        why = [(one.experience_id, one.why_not_compared) for one in group.samples]
        return cls(left_out=[LeftOut(experience_id=id, reason=text) for id, text in why if text])

    def counted(self) -> "Outcome":
        """With the figures that every group has."""
        self.metrics |= {
            "experience_count": float(len(self.rows)),
            "filtered_count": float(len(self.left_out)),
            "skipped_group_ratio": float(not self.rows),
        }
        return self
