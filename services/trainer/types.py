"""Values that the parts of a rank share: batches, results of a step, published weights."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from trinity.types import BoolArray, FloatArray, IntArray
from trinity.weights.offer import OfferAddress

if TYPE_CHECKING:
    import torch

    from services.trainer.checkpoints.split import NamedSplits


PairSide = Literal["chosen", "rejected"]
Metrics = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReward:
    """The reward of a rollout, and the group it is compared in."""

    assignment_id: str
    """The runs of one assignment are a group."""
    run: int
    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """The terms of the reward, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRow:
    """One sequence; all arrays but the tokens cover the R tokens after the prompt."""

    position: int
    """Place in the batch; the two rows of a pair have the same."""
    tokens: IntArray
    prompt_length: int
    mask: BoolArray
    """True if the token is trained on."""
    rollout_logprobs: npt.NDArray[np.float32]
    """By the rollout policy, as its engine gave them; 0 for training data."""
    advantages: npt.NDArray[np.float32]
    weight: float = 1.0
    """Factor on the row's loss."""
    temperature: float = 1.0
    """The rollout's; log-probabilities are compared at the same one."""
    run_reward: RunReward | None = None
    """None for rows of training data."""
    token_rewards: FloatArray | None = None
    """Set if the workflow rewards tokens; else the run's reward is the last token's."""
    teacher_logprobs: FloatArray | None = None
    """A teacher's, for distillation."""
    reward_baseline: float | None = None
    """Reward of a greedy rollout of the same task."""
    versions: IntArray | None = None
    """[R]: the weights that generated each token; None for training data. Of tokens that are not
    trained on it may be any."""
    num_stale_tokens: int = 0
    """Tokens that the mask leaves out as too old (`staleness_unit: token`)."""
    routed_experts: npt.NDArray[np.int16] | None = None
    """[R, layers, k]: experts plus 1 of the passes that sampled the tokens; 0 where not known."""
    images: tuple[bytes, ...] = ()
    """Encoded files, in the order of their tokens."""
    num_image_tokens: int = 0
    """Tokens of images; the vision tower computes each of them too."""
    side: PairSide | None = None
    """The half of a pair that it is; the chosen one comes first, its other right after."""
    is_expert: bool = False
    """True for training data in a batch of rollouts."""
    is_truncated: bool = False
    """True if the formatter had to cut it."""

    @property
    def length(self) -> int:
        """Number of tokens in all."""
        return len(self.tokens)

    @property
    def size(self) -> int:
        """Number of tokens that all parts of the model compute."""
        return len(self.tokens) + self.num_image_tokens

    @property
    def response_length(self) -> int:
        """Number of tokens after the prompt."""
        return len(self.tokens) - self.prompt_length

    @property
    def oldest_version(self) -> int | None:
        """The oldest weights of a trained token; None where none has any."""
        if self.versions is None or not self.mask.any():
            return None
        return int(self.versions[self.mask].min())


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """The rows of one train step in order of position, and the buffer's data about them."""

    step: int
    rows: Sequence[TrainRow]
    metrics: dict[str, float]
    """Means over the batch, measured by the buffer."""
    replayed: bool
    """True if it was composed for an earlier incarnation."""
    rows_sha256: bytes = b""
    """Digest of the rows as they came; empty if the buffer has recorded none."""
    num_bad_rows: int = 0
    """Rows that could not be formatted and are left out (`on_bad_row: skip`)."""

    @property
    def num_trained_tokens(self) -> int:
        """Number of tokens that the loss is computed on."""
        return int(sum(int(row.mask.sum()) for row in self.rows))

    @property
    def num_trained_rows(self) -> int:
        """Number of rows with at least one such token."""
        return sum(bool(row.mask.any()) for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTokens:
    """One number for each token of a response; NaN for those that are not trained on."""

    logprobs_T: FloatArray
    """By the policy that the row's update started from."""
    advantages_T: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStatistics:
    """Means over a row's trained tokens, and the tokens of a few rows."""

    mean_ratio: float
    """Probability by the policy that the row's update started from, divided by the rollout
    policy's."""
    advantage: float
    tokens: TrainedTokens | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """The result of a step: metrics of the whole batch, and statistics of its rows."""

    metrics: Metrics
    rows: dict[int, RowStatistics]
    """Keyed by position in the batch."""


class RankTurnState(StrEnum):
    """States of a rank's turn on a device that it shares."""

    WANTED = "wanted"
    HELD = "held"
    RELEASED = "released"


class StageLearner(Protocol):
    """One rank's share of the models that a stage trains. Every method is collective."""

    def train_step(
        self, batch: TrainBatch, learning_rate: float, critic_learning_rate: float = 0.0
    ) -> StepOutcome:
        """Trains on a whole batch."""

    def weights(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """Yields whole tensors by their Hugging Face names."""

    def split_weights(self) -> "NamedSplits | None":
        """Yields the same tensors as the ranks hold them; None where they are only had whole."""

    def adapter_base(self) -> bytes | None:
        """Returns the hash of the weights below the adapter; None without one."""

    def save(self, directory: Path, step: int) -> None:
        """Writes this rank's part of a checkpoint."""

    def load(self, directory: Path) -> None:
        """Continues from a checkpoint."""

    def enter_device(self) -> None:
        """Moves weights and optimizers from the host's memory to the device."""

    def leave_device(self) -> None:
        """Moves all that it has on the device to the host's memory, and frees it there."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class WeightsOnDisk:
    """A version on disk; newer ones are greater."""

    version: int
    incarnation: int
    path: Path
    manifest_sha256: bytes
    weights_sha256: bytes = b""
    """Root of weights that release 0.1 knows."""
    weights_blake3: bytes = b""
    parent: int
    """The version it was trained from."""
    offer: OfferAddress | None = field(default=None, compare=False)
    """The place from which it is also sent from memory."""
    copy: int = 0
    """Counts how often it was written again under another path."""
    lineage_sha256: bytes = field(default=b"", compare=False)
    """Digest of all batches that it was trained on; empty where that is not known."""
    base_version: int | None = field(default=None, compare=False)
    """The whole version, of the same incarnation, that its files are differences to."""

    @property
    def is_whole(self) -> bool:
        """True if its files are a model without those of another version."""
        return self.base_version is None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCheckpoint:
    """A checkpoint on disk."""

    step: int
    incarnation: int
    path: Path
    manifest_sha256: bytes
    lineage_sha256: bytes = b""
    """The same as of weights."""


def mean_max_min(name: str, values: Sequence[float] | npt.NDArray[np.float64]) -> dict[str, float]:
    """Returns the mean, maximum and minimum; empty without values."""
    ordered = sorted(float(value) for value in values)
    if not ordered:
        return {}
    mean = sum(ordered) / len(ordered)
    return {f"{name}/mean": mean, f"{name}/max": ordered[-1], f"{name}/min": ordered[0]}


def batch_metrics(
    batch: TrainBatch, *, max_prompt_tokens: int, max_response_tokens: int
) -> dict[str, float]:
    """Returns lengths in tokens and numbers of rows, over the whole batch.

    A `clip_ratio` is the share of rows of the greatest length, which were probably cut off.
    """
    prompts = [row.prompt_length for row in batch.rows]
    responses = [row.response_length for row in batch.rows]
    return {
        **mean_max_min("prompt_length", prompts),
        **mean_max_min("response_length", responses),
        **_clip_ratio("prompt_length", prompts, max_prompt_tokens),
        **_clip_ratio("response_length", responses, max_response_tokens),
        "perf/total_num_tokens": float(sum(prompts) + sum(responses)),
        "train/num_rows": float(len(batch.rows)),
        "train/num_trained_rows": float(batch.num_trained_rows),
        "train/num_trained_tokens": float(batch.num_trained_tokens),
        "train/num_bad_rows": float(batch.num_bad_rows),
        "train/num_truncated_rows": float(sum(row.is_truncated for row in batch.rows)),
        "train/replayed": float(batch.replayed),
        **_staleness(batch),
    }


def _staleness(batch: TrainBatch) -> dict[str, float]:
    """Returns how many steps older weights are than those of the step, by trained token and sample.

    A sample is as old as its oldest trained token.
    """
    rows = [row for row in batch.rows if row.versions is not None and row.mask.any()]
    ages = [batch.step - 1 - row.versions[row.mask] for row in rows if row.versions is not None]
    if not ages:
        return {}
    ages_N = np.concatenate(ages)
    return {
        "staleness/token/mean": float(ages_N.mean()),
        "staleness/token/max": float(ages_N.max()),
        "staleness/sample/mean": float(np.mean([age.max() for age in ages])),
        "staleness/num_mixed_samples": float(sum(age.min() < age.max() for age in ages)),
        "staleness/num_masked_tokens": float(sum(row.num_stale_tokens for row in batch.rows)),
    }


def _clip_ratio(name: str, lengths: Sequence[int], longest: int) -> dict[str, float]:
    if not lengths:
        return {}
    return {f"{name}/clip_ratio": sum(length >= longest for length in lengths) / len(lengths)}


def mean_over_passes(passes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each metric over the passes that have it, as verl reports it."""
    found: dict[str, list[float]] = {}
    for name, value in chain.from_iterable(metrics.items() for metrics in passes):
        found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}
