"""Calls advantages of Trinity-RFT: on experiences in the buffer, on a batch in the trainer."""

import inspect
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trinity.algorithm.adapted_part import AdaptedPart
from trinity.algorithm.advantage.needs import Needs, needs
from trinity.algorithm.advantage.samples import Advantages, Samples
from trinity.algorithm.advantage_fn import AdvantageFn
from trinity.algorithm.token_advantage import NEEDS_OF_CLASSES
from trinity.algorithm.token_advantage.token_batch import FloatMatrix, TokenAdvantages, TokenBatch
from trinity.buffer.experiences import ReturnedExperiences, experiences_of, group_metrics
from trinity.errors import UserError

WHOLE_STEP = Needs(whole_step=True, content=True)
COLUMNS = (
    "token_level_rewards",
    "token_level_scores",
    "response_mask",
    "old_log_probs",
    "rollout_log_probs",
    "values",
    "entropys",
    "teacher_logprobs",
    "reward_baselines",
)
"""Tensors of a batch, by verl's names, as far as the algorithm has them."""


class AdaptedGroupAdvantage(AdaptedPart):
    """A class of an advantage of experiences as a group advantage."""

    input_type = "Samples"
    return_type = "Advantages"

    def __call__(self, samples: Samples, **arguments: Any) -> Advantages:
        """Returns the advantages that the class gives to experiences."""
        exps = experiences_of(samples)
        kept, metrics = self.instance(arguments)(list(exps))
        outcome = ReturnedExperiences.of(exps, kept)
        values_N = np.zeros(len(exps))
        for number, exp in outcome.returned.items():
            values_N[number] = exp.advantage
        return Advantages(
            values_N,
            left_out=outcome.left_out,
            reason=f"{self.__name__} dropped it",
            copies_of=outcome.copies_of(),
            metrics=group_metrics(metrics or {}, samples.num_groups),
        )


class AdaptedTokenAdvantage(AdaptedPart):
    """A class of an advantage of the trainer's batch as a token advantage."""

    input_type = "TokenBatch"
    return_type = "TokenAdvantages"

    def __call__(self, batch: TokenBatch, **arguments: Any) -> TokenAdvantages:
        """Returns the advantages that the class writes into a batch."""
        data = TokenData.of(batch)
        answer, metrics = self.instance(arguments)(data)
        if "advantages" not in answer.batch:
            raise UserError(f"{self.__name__} wrote no `advantages` into the batch")
        returns = answer.batch.get("returns")
        return TokenAdvantages(
            advantages_BT=_matrix(answer.batch["advantages"], batch),
            returns_BT=None if returns is None else _matrix(returns, batch),
            metrics={name: float(value) for name, value in (metrics or {}).items()},
        )


def _matrix(tensor: Any, batch: TokenBatch) -> FloatMatrix:
    values_BT = np.asarray(tensor.detach().cpu(), dtype=np.float64)
    return np.where(batch.mask_BT, values_BT, 0.0)


class _Columns(dict[str, Any]):
    """Tensors by name; a missing one is told with those that are there."""

    def __missing__(self, name: str) -> Any:
        raise UserError(
            f"the batch has no `{name}` for this algorithm: it has {', '.join(self)}; of "
            f"{', '.join(COLUMNS)} it has those that the algorithm computes"
        )


@dataclass(slots=True)
class TokenData:
    """A batch as verl's DataProto holds it: tensors, arrays and settings by name."""

    batch: dict[str, Any]
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: TokenBatch) -> "TokenData":
        """Returns the batch's arrays as tensors."""
        import torch  # the classes import it, too

        columns = {
            "token_level_rewards": batch.rewards_BT,
            "token_level_scores": batch.rewards_BT,
            "old_log_probs": batch.logprobs_BT,
            "rollout_log_probs": batch.rollout_logprobs_BT,
            "values": batch.values_BT,
            "entropys": batch.entropies_BT,
            "teacher_logprobs": batch.teacher_logprobs_BT,
            "reward_baselines": batch.baselines_B,
        }
        tensors = {
            name: torch.tensor(values, dtype=torch.float32)
            for name, values in columns.items()
            if values is not None
        }
        return cls(
            batch=_Columns(response_mask=torch.tensor(batch.mask_BT), **tensors),
            non_tensor_batch={"uid": np.array([str(group) for group in batch.groups_B])},
        )

    def __len__(self) -> int:
        return len(self.batch["response_mask"])


def adapt_advantage(name: str, source: type) -> AdaptedPart | type:
    """Returns the class as a part; one that is no advantage stays as it is.

    Raises: UserError when it is asynchronous.
    """
    if not issubclass(source, AdvantageFn):
        return source
    if source.compute_in_trainer():
        if _names_column(source, "entropys"):
            NEEDS_OF_CLASSES[name] = frozenset({"entropies"})
        return AdaptedTokenAdvantage(source)
    if inspect.iscoroutinefunction(source.__call__):
        raise UserError(f"`__call__` of {source.__name__} is asynchronous: write it without async")
    adapted = AdaptedGroupAdvantage(source)
    needs(WHOLE_STEP)(adapted)
    return adapted


def _names_column(source: type, column: str) -> bool:
    """Returns true if a method of the class or of its bases has the column's name in it."""
    members = [member for base in source.__mro__ for member in vars(base).values()]
    return any(
        column in member.__code__.co_consts for member in members if inspect.isfunction(member)
    )
