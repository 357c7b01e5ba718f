"""The policy loss of one optimizer batch, as verl's worker calls it for each micro-batch.

Shapes: N rows, C columns of a micro-batch.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

import torch
from tensordict import TensorDict

from services.trainer.backend.expert_balance import BALANCE, ROUTER_Z_LOSS
from services.trainer.backend.token_head import DIVERGENCE
from services.trainer.collectives import MetricSums
from trinity.algorithm.aggregation import BatchTotals, LossAggMode
from trinity.algorithm.entropy import ENTROPY_LOSSES
from trinity.algorithm.entropy.inputs import EntropyInputs
from trinity.algorithm.forms import RESERVED
from trinity.algorithm.kl import DIVERGENCES
from trinity.algorithm.kl.estimators import KlEstimator
from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.algorithm.policy_loss.contributions import loss_contribution, metric_contributions
from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss, validate_policy_loss
from trinity.config.plan.parts import ResolvedAlgorithm
from trinity.config.plan.stage_plan import StagePlan
from trinity.user_code.adapted_part import AdaptedPart

CLIP_FRACTION_METRIC = "pg_clipfrac"
"""The metric by which clipping losses mark clipped tokens."""
EntropyLossFn = Callable[[EntropyInputs], PolicyLoss]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFunctions:
    """The terms of the loss: policy + coefficient * divergence - entropy.

    A teacher adds the divergence from it.
    """

    policy_loss: Callable[[PolicyInputs], PolicyLoss]
    kl: KlEstimator | None
    entropy_loss: EntropyLossFn | None
    agg_mode: LossAggMode
    distillation_coef: float = 0.0
    """Factor of the divergence from a teacher, whose engine computes it; 0 without one."""
    weighs_advantages: bool = False
    """True for a loss of one number, in which only its advantages can be weighed."""

    @classmethod
    def from_plan(cls, plan: StagePlan) -> "LossFunctions":
        """Builds the terms from the plan.

        Raises: UserError when a function given by its path cannot be loaded or used.
        """
        algorithm = plan.algorithm
        function = POLICY_LOSSES.get(algorithm.policy_loss_fn)
        validate_policy_loss(algorithm.policy_loss_fn, function, algorithm.policy_loss_fn_args)
        has_kl = algorithm.kl_loss_fn != "none"
        return cls(
            policy_loss=partial(function, **algorithm.policy_loss_fn_args),
            kl=DIVERGENCES.get(algorithm.kl_loss_fn) if has_kl else None,
            entropy_loss=_entropy_loss(algorithm),
            agg_mode=algorithm.loss_agg_mode,
            distillation_coef=_distillation_coef(plan),
            weighs_advantages=isinstance(function, AdaptedPart),
        )


def _distillation_coef(plan: StagePlan) -> float:
    return 0.0 if plan.teacher_model_path is None else plan.config.algorithm.distillation.coef


def _entropy_loss(algorithm: ResolvedAlgorithm) -> EntropyLossFn | None:
    name, arguments = algorithm.entropy_loss_fn, algorithm.entropy_loss_fn_args
    if name == "none" or not arguments.get("entropy_coef", 1.0):
        return None
    return partial(ENTROPY_LOSSES.get(name), **arguments)


class BatchLoss:
    """The loss over the micro-batches of an optimizer batch.

    Gradients of all calls and ranks add up to the gradient of the whole batch.

        loss = BatchLoss(functions, totals, step=7, kl_coef=0.1, num_ranks=2)
        worker.set_loss_fn(loss)
        worker.forward_backward(part)       # once per micro-batch
        loss.outputs["logprobs"]               # of the last micro-batch
        loss.sums                           # this rank's sums by name; add them over ranks
    """

    def __init__(
        self,
        functions: LossFunctions,
        totals: BatchTotals,
        *,
        step: int,
        kl_coef: float,
        num_ranks: int,
    ) -> None:
        self._functions = functions
        self._totals = totals
        self._step = step
        self._kl_coef = kl_coef
        self._num_ranks = num_ranks
        self.sums = MetricSums()
        self.outputs: dict[str, torch.Tensor] = {}
        """Outputs of the last micro-batch, [N, C]: log-probabilities and, where there are any,
        entropies and clipped tokens."""

    def __call__(
        self, model_output: dict[str, torch.Tensor], data: TensorDict, dp_group: object
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Computes the loss for verl's engine; the scale undoes gradient averaging over ranks."""
        del dp_group
        inputs = self._inputs(model_output, data)
        self.outputs = {"logprobs": inputs.logprobs_BT.detach()}
        rows_N1 = data["row_weights"][:, None]
        corrections_NC = data.get("corrections", None)
        factors_NC = rows_N1 if corrections_NC is None else rows_N1 * corrections_NC
        weighed = inputs
        if self._functions.weighs_advantages:
            weighed = replace(inputs, advantages_BT=inputs.advantages_BT * factors_NC)
        policy = self._functions.policy_loss(weighed)
        loss = self._add_term(policy, inputs, factors_NC)
        loss = loss + self._divergence(inputs, rows_N1)
        loss = loss + self._distillation(model_output, inputs, rows_N1)
        loss = loss - self._entropy(model_output, inputs, rows_N1, {*policy.metrics, *RESERVED})
        self.sums.add_share("loss", loss)
        self.sums.add_share("final_loss", loss)  # Trinity-RFT's name
        for name in (BALANCE, ROUTER_Z_LOSS):
            if name in model_output:  # its gradient comes from the gates themselves
                self.sums.add_share(name, model_output[name])
        self._record_metrics(policy, inputs)
        return loss * self._num_ranks, {}

    def _inputs(self, model_output: dict[str, torch.Tensor], data: TensorDict) -> PolicyInputs:
        mask_NC = data["loss_mask"]
        return PolicyInputs(
            logprobs_BT=torch.where(mask_NC, model_output["log_probs"], 0.0),
            old_logprobs_BT=data["old_logprobs"],
            advantages_BT=data["advantages"],
            mask_BT=mask_NC,
            reference_logprobs_BT=data.get("reference_logprobs", None),
            is_expert_B=data.get("is_expert", None),
            chosen_BT=data.get("chosen", None),
            step=self._step,
        )

    def _divergence(self, inputs: PolicyInputs, rows_N1: torch.Tensor) -> torch.Tensor:
        """Returns the aggregated, weighted term; the metric `kl` is the plain mean per token."""
        if self._functions.kl is None:
            return torch.zeros(())
        assert inputs.reference_logprobs_BT is not None
        kl_NC = self._functions.kl(
            inputs.logprobs_BT, inputs.reference_logprobs_BT, inputs.old_logprobs_BT
        )
        measured_NC = torch.where(inputs.mask_BT, kl_NC.detach(), 0.0).double()
        self.sums.add_share("kl", measured_NC.sum() / max(self._totals.num_tokens, 1))
        return self._kl_coef * self._add_term(
            PolicyLoss(name="kl_loss", loss_BT=kl_NC), inputs, rows_N1
        )

    def _distillation(
        self, model_output: dict[str, torch.Tensor], inputs: PolicyInputs, rows_N1: torch.Tensor
    ) -> torch.Tensor:
        """Returns the weighted divergence from a teacher; the metric is the mean per token."""
        if not self._functions.distillation_coef:
            return torch.zeros(())
        found_NC = torch.where(inputs.mask_BT, model_output[DIVERGENCE], 0.0)
        mean = found_NC.detach().double().sum() / max(self._totals.num_tokens, 1)
        self.sums.add_share("distillation", mean)
        term = PolicyLoss(name="distillation_loss", loss_BT=found_NC)
        return self._functions.distillation_coef * self._add_term(term, inputs, rows_N1)

    def _entropy(
        self,
        model_output: dict[str, torch.Tensor],
        inputs: PolicyInputs,
        rows_N1: torch.Tensor,
        taken: Collection[str],
    ) -> torch.Tensor:
        """Returns the entropy term, and reports the mean entropy wherever the engine gives it.

        Metrics of the term with names that are `taken` get the term's name in front.
        """
        if "entropy" not in model_output:
            return torch.zeros(())
        entropy_NC = torch.where(inputs.mask_BT, model_output["entropy"], 0.0)
        self.outputs["entropies"] = entropy_NC.detach()
        self.sums.add_share("entropy", entropy_NC.sum() / max(self._totals.num_tokens, 1))
        if self._functions.entropy_loss is None:
            return torch.zeros(())
        entropy = EntropyInputs(
            entropy_BT=entropy_NC,
            mask_BT=inputs.mask_BT,
            is_expert_B=inputs.is_expert_B,
            agg_mode=self._functions.agg_mode,
        )
        term = self._functions.entropy_loss(entropy)
        self._add_metrics(term, inputs, taken)
        return self._add_term(term, inputs, rows_N1)

    def _add_metrics(
        self, part: PolicyLoss, inputs: PolicyInputs, taken: Collection[str] = ()
    ) -> None:
        for name, value in metric_contributions(part, inputs, self._totals).items():
            self.sums.add_share(f"{part.name}/{name}" if name in taken else name, value)

    def _record_metrics(self, policy: PolicyLoss, inputs: PolicyInputs) -> None:
        self._add_metrics(policy, inputs)
        clipped = policy.metrics.get(CLIP_FRACTION_METRIC)
        if clipped is not None and clipped.shape == inputs.mask_BT.shape:
            self.outputs["clipped"] = clipped.detach()

    def _add_term(
        self, part: PolicyLoss, inputs: PolicyInputs, factors: torch.Tensor
    ) -> torch.Tensor:
        share = loss_contribution(part, inputs, self._totals, self._functions.agg_mode, factors)
        self.sums.add_share(part.name, share)
        return share
