"""The samples of one task in an explore step, and the subset that is compared."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trinity.operators.rollouts import Content
from trinity.types import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSample:
    """Fields of a sample that the statistics of its group are computed from."""

    experience_id: str
    run: int
    reward: float | None
    finish_reason: str
    response_length: int = 0

    @property
    def score(self) -> float:
        """The reward that counts; 0 for a truncated prompt, which is masked out of the loss."""
        if self.finish_reason == FinishReason.PROMPT_TRUNCATED or self.reward is None:
            return 0.0
        return self.reward

    @property
    def is_truncated(self) -> bool:
        """True if the token limit ended the response."""
        return self.finish_reason == FinishReason.LENGTH

    @property
    def why_not_compared(self) -> str:
        """The reason why the sample is not compared; empty if it is."""
        if self.finish_reason == FinishReason.ABORT:
            return "it was cut off from outside"
        if self.reward is None and self.finish_reason != FinishReason.PROMPT_TRUNCATED:
            return "its reward is still awaited"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDetail:
    """Values that are read from the whole sample, only for functions that ask for them."""

    mean_logprob: float = math.nan
    step_reward: float = math.nan
    state: str = ""
    """Equal texts are equal states; empty if unknown."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Numeric values under the requested keys."""
    content: Content | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleGroup:
    """The samples of one task, in order of run and step."""

    explore_step: int
    position: int
    samples: Sequence[ScoredSample]

    @property
    def compared(self) -> list[ScoredSample]:
        """Samples that the advantage function sees."""
        return [sample for sample in self.samples if not sample.why_not_compared]


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedRow:
    """A row to be trained on: a revision of a sample, or with an ordinal above 0 a copy of it."""

    parent_id: str
    ordinal: int
    advantage: float
    reward: float | None = None
    """The reward if an operator has changed it."""
    is_masked: bool = False
    """True if all its tokens are excluded from training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredSample:
    """A sample that is not trained on."""

    experience_id: str
    reason: str


@dataclass(slots=True, kw_only=True)
class GroupOutcome:
    """The result of processing a group, or the error that it failed with."""

    rows: list[DerivedRow] = field(default_factory=list)
    left_out: list[FilteredSample] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    error: str = ""
    function: str = ""
    """The operator that raised the error; empty for the advantage function."""
    num_samples: int = 0
    """Samples that are compared, of `num_runs` runs."""
    num_runs: int = 0

    @classmethod
    def from_group(cls, group: SampleGroup) -> "GroupOutcome":
        """Returns an outcome with the samples that are not compared already left out."""
        why = [(sample.experience_id, sample.why_not_compared) for sample in group.samples]
        return cls(
            left_out=[FilteredSample(experience_id=id, reason=text) for id, text in why if text],
            num_samples=len(group.compared),
            num_runs=len({sample.run for sample in group.compared}),
        )

    def with_counts(self) -> "GroupOutcome":
        """Adds the metrics that every group has, and returns itself."""
        self.metrics |= {
            "experience_count": float(len(self.rows)),
            "filtered_count": float(len(self.left_out)),
            "skipped_group_ratio": float(not self.rows),
        }
        return self
