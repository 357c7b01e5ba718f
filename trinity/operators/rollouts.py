"""Input and result of experience operators: N samples of one group, or of many at once.

def short_only(rollouts: Rollouts, *, longest: int = 512) -> Changes:
    return Changes(left_out=rollouts.response_lengths > longest, reason="its answer is too long")

Shapes: N samples, G groups.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from trinity.algorithm.advantage.samples import BoolVector, FloatVector, IntVector, Samples
from trinity.errors import UserError
from trinity.types import Experience, JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Content of a sample, for operators that request it (`Needs(content=True)`)."""

    prompt_text: str
    response_text: str
    info: JsonObject
    """Information that the workflow stored with the sample."""
    metrics: Mapping[str, float]
    """Its metrics and the parts of its reward."""
    finish_reason: str = ""
    """Why it ended, as `FinishReason` has it; empty if unknown."""


ReadExperience = Callable[[int], Experience]


def _nothing_recorded(place: int) -> Experience:
    raise UserError(f"sample {place} is not one that a buffer recorded: it has no tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts(Samples):
    """Samples with their recorded contents in addition to their rewards."""

    is_truncated: BoolVector
    """True where the token limit ended the response, [N]."""
    has_reward: BoolVector
    """False where there is no reward and 0 stands in: the prompt was too long, [N]."""
    response_lengths: IntVector
    """Tokens after the prompt, [N]."""
    numbers: Mapping[str, FloatVector] = field(default_factory=dict)
    """Values of the keys that the operator requested, [N] each; NaN if missing."""
    contents: Sequence[Content] = ()
    """[N], or empty if not requested."""
    experience: ReadExperience = _nothing_recorded
    """Returns the whole of a sample by its place, loaded when it is first read: tokens, masks,
    log-probabilities, arrays. It raises UserError for samples that no buffer recorded."""

    @classmethod
    def of(
        cls,
        samples: Samples,
        *,
        is_truncated: BoolVector | None = None,
        has_reward: BoolVector | None = None,
        response_lengths: IntVector | None = None,
        numbers: Mapping[str, FloatVector] | None = None,
        contents: Sequence[Content] = (),
        experience: ReadExperience = _nothing_recorded,
    ) -> "Rollouts":
        """Makes rollouts from samples, with defaults for everything not given."""
        size = len(samples.rewards)
        zeros_N = np.zeros(size, dtype=np.int64)
        return cls(
            **{f.name: getattr(samples, f.name) for f in fields(Samples)},
            is_truncated=zeros_N.astype(np.bool_) if is_truncated is None else is_truncated,
            has_reward=np.ones(size, dtype=np.bool_) if has_reward is None else has_reward,
            response_lengths=zeros_N if response_lengths is None else response_lengths,
            numbers=numbers or {},
            contents=contents,
            experience=experience,
        )

    def chosen(self, which_N: BoolVector) -> "Rollouts":
        """Returns the selected samples; groups keep their numbers."""
        return Rollouts(
            **{f.name: getattr(self, f.name)[which_N] for f in fields(Samples)},
            is_truncated=self.is_truncated[which_N],
            has_reward=self.has_reward[which_N],
            response_lengths=self.response_lengths[which_N],
            numbers={key: values_N[which_N] for key, values_N in self.numbers.items()},
            contents=[self.contents[i] for i in np.flatnonzero(which_N)] if self.contents else (),
            experience=lambda place: self.experience(int(np.flatnonzero(which_N)[place])),
        )

    def of_each_group(self, values_G: FloatVector) -> FloatVector:
        """Returns the value of each sample's group, [N]."""
        return values_G[self.groups]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes to the samples; fields that are None are ignored."""

    left_out: BoolVector | None = None
    """[N], true where a sample is dropped: it is neither compared nor trained on."""
    reason: str = ""
    """Reason why they are left out, for people."""
    masked: BoolVector | None = None
    """[N], true where a sample is compared with others but not trained on."""
    rewards: FloatVector | None = None
    """[N], the rewards from here on."""
    numbers: Mapping[str, FloatVector] = field(default_factory=dict)
    """[N] each: `Rollouts.numbers` for the operators that follow; NaN is unknown."""
    metrics: Mapping[str, FloatVector] = field(default_factory=dict)
    """Metrics of each group, [G]. Over the groups of a batch those named `..._count` are summed,
    those named `..._ratio` are averaged, and all others are shown as mean, max and min."""


OperatorFn = Callable[..., Changes]
"""Takes `Rollouts`, then its `args` by keyword."""
