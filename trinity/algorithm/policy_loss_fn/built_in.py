"""Trinity-RFT's own losses as classes, around the functions here, for users' classes."""

import inspect
from functools import lru_cache
from typing import Any

import torch

from trinity.algorithm.aggregation import BatchTotals, LossAggMode
from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.algorithm.policy_loss.contributions import loss_contribution, metric_contributions
from trinity.algorithm.policy_loss.inputs import PolicyInputs
from trinity.algorithm.policy_loss_fn import PolicyLossFn, PolicyLossFnMeta

_USUAL = ["old_logprob", "action_mask", "advantages"]
_WANTED = {
    "dpo": ["ref_logprob", "action_mask"],
    "opmd": ["action_mask", "advantages"],
    "mix": [*_USUAL, "expert_mask"],
    "mix_chord": [*_USUAL, "expert_mask", "step"],
    "sft": ["action_mask"],
    "sft_is": ["action_mask"],
    "sft_phi": ["action_mask"],
}
"""Tensors that a loss wants, in the order in which it is called, where they are not the usual."""
_OTHER_DEFAULTS: dict[str, dict[str, Any]] = {
    "gspo": {"loss_agg_mode": "seq-mean-token-mean"},
    "sapo": {"detach_gate": True},
}
"""Values of Trinity-RFT that differ from those of our functions."""


class BuiltInLoss(PolicyLossFn):
    """A loss of ours that takes named tensors: the rows of a call count as a whole batch."""

    function_name: str

    def __init__(self, backend: str = "verl", **arguments: Any) -> None:
        super().__init__(backend=backend)
        arguments = {**_OTHER_DEFAULTS.get(self.function_name, {}), **arguments}
        self.loss_agg_mode: LossAggMode = arguments.pop("loss_agg_mode", None) or "token-mean"
        known = inspect.signature(self._function()).parameters
        self.arguments = {k: v for k, v in arguments.items() if k in known and v is not None}
        for name, value in arguments.items():
            setattr(self, name, value)

    @classmethod
    def _function(cls) -> Any:
        return POLICY_LOSSES.built_in(cls.function_name)

    def __call__(
        self,
        logprob: torch.Tensor,
        *args: torch.Tensor,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Returns the aggregated loss and its metrics; tensors without names are in their order."""
        given: dict[str, Any] = {**dict(zip(self.wanted_keys, args, strict=False)), **kwargs}
        old_logprob, advantages = given.get("old_logprob"), given.get("advantages")
        action_mask, step = given.get("action_mask"), given.get("step")
        mask = torch.ones_like(logprob) if action_mask is None else action_mask
        inputs = PolicyInputs(
            logprobs_BT=logprob,
            old_logprobs_BT=logprob.detach() if old_logprob is None else old_logprob,
            advantages_BT=torch.zeros_like(logprob) if advantages is None else advantages,
            mask_BT=mask.bool(),
            reference_logprobs_BT=given.get("ref_logprob"),
            is_expert_B=given.get("expert_mask"),
            step=1 if step is None else int(step.max()),
        )
        return self._aggregated(inputs)

    def _aggregated(self, inputs: PolicyInputs) -> tuple[torch.Tensor, dict[str, float]]:
        loss = self._function()(inputs, **self.arguments)
        experts = inputs.is_expert_B
        totals = BatchTotals.from_counts(
            inputs.mask_BT.sum(-1).numpy(force=True),
            max_response_tokens=inputs.mask_BT.shape[-1],
            is_expert_B=None if experts is None else experts.numpy(force=True),
        )
        value = loss_contribution(loss, inputs, totals, self.loss_agg_mode)
        metrics = metric_contributions(loss, inputs, totals)
        numbers = {name: float(metric) for name, metric in metrics.items()}
        return value, {**numbers, loss.name: value.detach().item()}

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns the function's own values."""
        known = inspect.signature(cls._function()).parameters.values()
        given = {p.name: p.default for p in known if p.kind is p.KEYWORD_ONLY}
        return {
            **given,
            "loss_agg_mode": "token-mean",
            **_OTHER_DEFAULTS.get(cls.function_name, {}),
        }


@lru_cache
def loss_class(name: str, function: str) -> type[PolicyLossFn]:
    """Returns the class of a built-in loss."""
    doc = f"The loss `{function}` as a class of Trinity-RFT."
    namespace = {
        "function_name": function,
        "wanted_keys": _WANTED.get(function, _USUAL),
        "__doc__": doc,
        "__module__": PolicyLossFn.__module__,
    }
    made = PolicyLossFnMeta(name, (BuiltInLoss,), namespace)
    assert issubclass(made, PolicyLossFn)
    return made
