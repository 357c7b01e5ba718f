"""Calls losses of Trinity-RFT on part of an optimizer batch, and exposes the built-in ones.

A loss returns one number for the part, a mean by its own rule. It counts by the part's share of the
whole batch's tokens, or rows, so that parts add up to the batch.
"""

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from trinity.algorithm.aggregation import BatchTotals, LossAggMode
from trinity.algorithm.forms import RESERVED
from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.algorithm.policy_loss.contributions import loss_contribution, metric_contributions
from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss, Share
from trinity.errors import UserError
from trinity.rft.algorithm.policy_loss_fn import PolicyLossFn, PolicyLossFnMeta
from trinity.rft.algorithm.utils import AVERAGES_TOKENS
from trinity.user_code.adapted_part import AdaptedPart, set_attributes

TENSORS = (
    "advantages",
    "expert_mask",
    "old_log_probs",
    "ref_log_prob",
    "response_mask",
    "rollout_log_probs",
    "step",
)
"""Names of tensors, in verl's spelling, that the trainer gives to a loss."""
REFERENCE, ROLLOUTS = "ref_log_prob", "rollout_log_probs"
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


class AdaptedLoss(AdaptedPart):
    """A class of a loss as a policy loss."""

    filled_in = frozenset({"backend"})
    input_type = "PolicyInputs"
    return_type = "PolicyLoss"

    def __init__(self, source: type[PolicyLossFn]) -> None:
        super().__init__(source)
        self.needs_reference = REFERENCE in _batch_names(source)
        self.wants_rollouts = ROLLOUTS in _batch_names(source)

    def __call__(self, inputs: PolicyInputs, /, **arguments: Any) -> PolicyLoss:
        """Returns the loss of a part of a batch; 0 where no token is trained on."""
        loss_fn: PolicyLossFn = self.instance(arguments)
        if not inputs.mask_BT.any():
            return PolicyLoss(name="policy_loss", loss=inputs.logprobs_BT.sum() * 0.0)
        known = tensors_of(inputs)
        keys = map(_spelled, loss_fn.select_keys)
        wanted = {key: known[key] for key in keys if key in known}
        AVERAGES_TOKENS.set(False)
        loss, metrics = loss_fn(logprob=inputs.logprobs_BT, **wanted)
        share = share_of(loss_fn, averages_tokens=AVERAGES_TOKENS.get())
        return scalar_loss(loss, metrics, inputs.mask_BT, share, "policy_loss")


def adapted_loss(name: str, source: type) -> AdaptedLoss | type:
    """Makes a part of a class; one that is no loss stays as it is.

    Raises: UserError when it wants tensors that the trainer does not have.
    """
    if not issubclass(source, PolicyLossFn):
        return source
    adapted = AdaptedLoss(source)
    parameters = source.__call__.__wrapped__  # type: ignore[attr-defined]
    absent = [key for key in _required(parameters) if _spelled(key) not in TENSORS]
    if absent:
        known = ", ".join(sorted(map(source.mapper.to_trinity, TENSORS)))
        raise UserError(
            f"{source.__name__} of `{name}` wants the tensors {', '.join(absent)}, which the "
            f"trainer does not have: it gives logprob, {known}"
        )
    return adapted


def _required(call: Any) -> list[str]:
    parameters = inspect.signature(call).parameters.values()
    return [
        p.name
        for p in parameters
        if p.default is p.empty
        and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        and p.name not in {"self", "logprob"}
    ]


def _spelled(key: str) -> str:
    return PolicyLossFn.mapper.from_trinity(key)


def _batch_names(source: type[PolicyLossFn]) -> set[str]:
    return {_spelled(key) for key in source.wanted_keys}


def tensors_of(inputs: PolicyInputs) -> dict[str, Any]:
    """Returns a batch's tensors by verl's names."""
    tensors = {
        "advantages": inputs.advantages_BT,
        "old_log_probs": inputs.old_logprobs_BT,
        "rollout_log_probs": inputs.old_logprobs_BT,
        "response_mask": inputs.mask_BT,
        "ref_log_prob": inputs.reference_logprobs_BT,
        "expert_mask": inputs.is_expert_B,
        "step": torch.full_like(inputs.mask_BT[:, 0], inputs.step, dtype=torch.int32),
    }
    if inputs.is_expert_B is None:
        tensors["expert_mask"] = torch.zeros_like(inputs.mask_BT[:, 0])
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def share_of(loss_fn: object, *, averages_tokens: bool) -> Share:
    """Returns the share by which a loss counts: of tokens where it averages over tokens.

    A loss without `loss_agg_mode` has averaged over tokens if it called `masked_mean` for all.
    """
    mode = getattr(loss_fn, "loss_agg_mode", None)
    if mode is None:
        return "tokens" if averages_tokens else "rows"
    return "tokens" if mode == "token-mean" else "rows"


def scalar_loss(
    loss: torch.Tensor, metrics: Mapping[str, Any], mask_BT: torch.Tensor, share: Share, name: str
) -> PolicyLoss:
    """Returns a loss of one number, with the metrics that are numbers."""
    numbers = {
        f"{name}/{key}" if key in RESERVED or key == name else key: float(value)
        for key, value in metrics.items()
        if _is_number(value)
    }
    filled = {
        key: torch.full_like(mask_BT, value, dtype=torch.float64) for key, value in numbers.items()
    }
    return PolicyLoss(name=name, loss=loss, share=share, metrics=filled)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or (
        isinstance(value, torch.Tensor) and value.numel() == 1
    )


class BuiltInLoss(PolicyLossFn):
    """A built-in loss that takes named tensors: the rows of a call count as a whole batch."""

    function_name: str

    def __init__(self, /, backend: str = "verl", **arguments: Any) -> None:
        super().__init__(backend=backend)
        arguments = {**_OTHER_DEFAULTS.get(type(self).function_name, {}), **arguments}
        self.loss_agg_mode: LossAggMode = arguments.pop("loss_agg_mode", None) or "token-mean"
        parameters = inspect.signature(self._function()).parameters.values()
        known = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        self.__arguments = {k: v for k, v in arguments.items() if k in known and v is not None}
        set_attributes(self, arguments)

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
        loss = self._function()(inputs, **self.__arguments)
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
