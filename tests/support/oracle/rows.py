"""A row of a batch, and what models say of it."""

from dataclasses import dataclass, field

from tests.support.oracle.losses import Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sequence; lists are of the tokens after the prompt."""

    tokens: list[int]
    prompt_length: int
    mask: list[bool]
    rollout: list[float]
    """Log-probabilities by the policy that generated the tokens."""
    advantage: float = 0.0
    """One for all of its tokens, where none is computed from what models say."""
    reward: float = 0.0
    group: int = 0
    run: int = 0
    """Among all runs."""
    teacher: list[float] = field(default_factory=list)
    weight: float = 1.0
    temperature: float = 1.0
    is_expert: bool = False

    @property
    def places(self) -> list[int]:
        """Of the tokens that are trained on, counted after the prompt."""
        return [place for place, is_trained in enumerate(self.mask) if is_trained]


@dataclass(slots=True, kw_only=True)
class Answer:
    """What is known of a row; lists are of its trained tokens."""

    row: Row
    lp: list[Scalar]
    entropy: list[Scalar]
    old: list[float]
    """Of the denominator of ratios."""
    rollout: list[float]
    student: list[float]
    """By the policy at temperature 1, as a teacher's are."""
    teacher: list[float]
    reference: list[float]
    values: list[Scalar]
    rewards: list[float]
    """0, and the row's reward for the last of them; less a penalty where there is one."""
    apart: Scalar | None = None
    """The sum of the divergence from a teacher's whole distributions."""
