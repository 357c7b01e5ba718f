"""The loss of one optimizer batch, given to verl's worker call by call."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils

from services.trainer.tensors import response_columns
from trinity.algorithm.aggregation import BatchTotals, LossAggMode, token_weights
from trinity.algorithm.kl.estimators import KL_ESTIMATORS, KlEstimator
from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.config.plan import StagePlan

LARGEST_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRecipe:
    """The parts of the loss: policy + kl_coef * kl - entropy_coef * entropy."""

    policy_loss: Callable[[PolicyInputs], PolicyLoss]
    kl: KlEstimator | None
    kl_coef: float
    entropy_coef: float
    agg_mode: LossAggMode
    has_rollout: bool
    """Whether old log-probabilities mean something."""

    @classmethod
    def of(cls, plan: StagePlan) -> "LossRecipe":
        """As the plan says.

        Raises: UserError when a function given by its path cannot be loaded.
        """
        algorithm = plan.algorithm
        function = POLICY_LOSSES.get(algorithm.policy_loss_fn)
        return cls(
            policy_loss=partial(function, **algorithm.policy_loss_fn_args),
            kl=KL_ESTIMATORS.get(algorithm.kl_loss_fn),
            kl_coef=_number(algorithm.kl_loss_fn_args["kl_coef"]),
            entropy_coef=_number(algorithm.entropy_loss_fn_args["entropy_coef"]),
            agg_mode=algorithm.loss_agg_mode,
            has_rollout=plan.needs_rollout,
        )


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStatistics:
    """Means over a row's trained tokens."""

    mean_ratio: float
    advantage: float


class BatchLoss:
    """Loss of the parts of an optimizer batch; gradients of all calls and ranks add up to its own.

    loss = BatchLoss(recipe, totals, num_ranks=2)
    worker.set_loss_fn(loss)
    worker.forward_backward(part)       # as often as there are parts
    loss.sums                           # of this rank, by name; the ranks' add up to the figure
    """

    def __init__(self, recipe: LossRecipe, totals: BatchTotals, num_ranks: int) -> None:
        self._recipe = recipe
        self._totals = totals
        self._num_ranks = num_ranks
        self.sums: dict[str, torch.Tensor] = {}
        self.largest_logprob_difference = torch.zeros(())
        self.row_statistics: list[RowStatistics] = []

    def __call__(
        self, model_output: dict[str, torch.Tensor], data: TensorDict, dp_group: object
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Called by verl's engine; the scale undoes the averaging of gradients over ranks."""
        del dp_group
        mask_BT = data["loss_mask"]
        first = tensordict_utils.get_non_tensor_data(data, "first_token", default=1)
        logprobs_BT = response_columns(model_output["log_probs"], first, mask_BT.shape[1])
        inputs = PolicyInputs(
            logprobs_BT=torch.where(mask_BT, logprobs_BT, 0.0),
            old_logprobs_BT=data["old_logprobs"],
            advantages_BT=data["advantages"],
            mask_BT=mask_BT,
        )
        weights_BT = token_weights(mask_BT, self._recipe.agg_mode, self._totals, torch.float32)
        weights_BT = weights_BT * data["row_weights"][:, None]
        policy = self._recipe.policy_loss(inputs)
        loss = self._add(policy.name, (policy.loss_BT * weights_BT).sum())
        loss = loss + self._divergence(inputs, data, weights_BT)
        loss = loss - self._entropy(model_output, inputs, first, weights_BT)
        self._add("loss", loss)
        self._observe(policy, inputs)
        return loss * self._num_ranks, {}

    def _divergence(
        self, inputs: PolicyInputs, data: TensorDict, weights_BT: torch.Tensor
    ) -> torch.Tensor:
        if self._recipe.kl is None:
            return torch.zeros(())
        kl_BT = self._recipe.kl(inputs.logprobs_BT, data["reference_logprobs"])
        return self._recipe.kl_coef * self._add("kl_loss", (kl_BT * weights_BT).sum())

    def _entropy(
        self,
        model_output: dict[str, torch.Tensor],
        inputs: PolicyInputs,
        first: int,
        weights_BT: torch.Tensor,
    ) -> torch.Tensor:
        """The mean is always reported where the engine gives it; a gradient needs a coefficient."""
        if "entropy" not in model_output:
            return torch.zeros(())
        entropy_BT = response_columns(model_output["entropy"], first, weights_BT.shape[1])
        entropy_BT = torch.where(inputs.mask_BT, entropy_BT, 0.0)
        self._add_mean("entropy", entropy_BT)
        if self._recipe.entropy_coef == 0:
            return torch.zeros(())
        return self._recipe.entropy_coef * self._add(
            "entropy_loss", (entropy_BT * weights_BT).sum()
        )

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _observe(self, policy: PolicyLoss, inputs: PolicyInputs) -> None:
        mask_BT = inputs.mask_BT
        for name, values_BT in policy.metrics.items():
            self._add_mean(name, torch.where(mask_BT, values_BT.float(), 0.0))
        if not self._recipe.has_rollout:
            return
        difference_BT = inputs.logprobs_BT - inputs.old_logprobs_BT
        self._add_mean("rollout_logprob_diff", difference_BT.abs())
        self.largest_logprob_difference = torch.maximum(
            self.largest_logprob_difference, difference_BT.abs().max()
        )
        tokens_B = mask_BT.sum(-1).clamp(min=1)
        ratio_BT = difference_BT.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp() * mask_BT
        ratios = (ratio_BT.sum(-1) / tokens_B).tolist()
        advantages = (inputs.advantages_BT.sum(-1) / tokens_B).tolist()
        self.row_statistics += [
            RowStatistics(mean_ratio=ratio, advantage=advantage)
            for ratio, advantage in zip(ratios, advantages, strict=True)
        ]

    def _add(self, name: str, value: torch.Tensor) -> torch.Tensor:
        self.sums[name] = self.sums.get(name, torch.zeros(())) + value.detach().double()
        return value

    def _add_mean(self, name: str, values_BT: torch.Tensor) -> None:
        self._add(name, values_BT.sum() / max(self._totals.num_tokens, 1))
