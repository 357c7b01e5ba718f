"""Calls entropy losses of Trinity-RFT on part of a batch, and exposes the built-in ones."""

import inspect
from functools import lru_cache
from typing import Any

import torch

from trinity.algorithm.entropy.inputs import EntropyInputs
from trinity.algorithm.policy_loss.inputs import PolicyLoss, Share
from trinity.errors import UserError
from trinity.rft.algorithm.entropy_loss_fn import EntropyLossFn
from trinity.rft.algorithm.policy_loss_fn.adapting import scalar_loss
from trinity.rft.algorithm.utils import aggregate_loss
from trinity.user_code.adapted_part import AdaptedPart


class AdaptedEntropyLoss(AdaptedPart):
    """A class of an entropy loss as an entropy loss; its `loss_agg_mode` is the algorithm's."""

    filled_in = frozenset({"backend"})
    input_type = "EntropyInputs"
    return_type = "PolicyLoss"

    def __call__(self, inputs: EntropyInputs, /, **arguments: Any) -> PolicyLoss:
        """Returns the entropy term of a part of a batch; 0 where no token is trained on."""
        loss_fn: EntropyLossFn = self.instance(arguments)
        if not inputs.mask_BT.any():
            return PolicyLoss(name="entropy_loss", loss=inputs.entropy_BT.sum() * 0.0)
        experts = inputs.is_expert_B
        if experts is None:
            experts = torch.zeros_like(inputs.mask_BT[:, 0])
        loss, metrics = loss_fn(
            entropy=inputs.entropy_BT,
            action_mask=inputs.mask_BT,
            expert_mask=experts,
            loss_agg_mode=inputs.agg_mode,
        )
        return scalar_loss(loss, metrics, inputs.mask_BT, self._share(inputs), "entropy_term")

    def _share(self, inputs: EntropyInputs) -> Share:
        takes_mode = "loss_agg_mode" in inspect.signature(self.source.__call__).parameters
        return "rows" if takes_mode and inputs.agg_mode != "token-mean" else "tokens"


def adapted_entropy_loss(name: str, source: type) -> AdaptedEntropyLoss | type:
    """Makes a part of a class; one that is no entropy loss stays as it is."""
    del name
    if not issubclass(source, EntropyLossFn):
        return source
    return AdaptedEntropyLoss(source)


class _BuiltInEntropyLoss(EntropyLossFn):
    """The mean entropy of all rows, or of rows other than an expert's, or no entropy."""

    function_name: str

    def __init__(self, entropy_coef: float = 0.0) -> None:
        self.entropy_coef = entropy_coef

    def __call__(
        self,
        entropy: torch.Tensor,
        action_mask: torch.Tensor,
        expert_mask: torch.Tensor | None = None,
        loss_agg_mode: str = "token-mean",
        **kwargs: Any,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Returns the coefficient times the entropy, and the entropy."""
        del kwargs
        if self.function_name == "none":
            return torch.tensor(0.0), {}
        if self.function_name == "mix":
            if expert_mask is None:
                raise UserError("MixEntropyLossFn needs `expert_mask`, which rows are an expert's")
            entropy, action_mask = entropy[~expert_mask], action_mask[~expert_mask]
        mean = aggregate_loss(entropy, action_mask, loss_agg_mode)
        return mean * self.entropy_coef, {"entropy_loss": mean.detach().item()}


@lru_cache
def entropy_class(name: str, function: str) -> type[EntropyLossFn]:
    """Returns the class of a built-in entropy loss."""
    doc = f"The entropy loss `{function}` as a class of Trinity-RFT."
    namespace = {"function_name": function, "__doc__": doc, "__module__": EntropyLossFn.__module__}
    made = type(name, (_BuiltInEntropyLoss,), namespace)
    assert issubclass(made, EntropyLossFn)
    return made
