"""Policy losses as Trinity-RFT has them: a class that takes named tensors and returns one number.

@POLICY_LOSS_FN.register_module("plain")
class Plain(PolicyLossFn):
    def __call__(self, logprob, action_mask, advantages, **kwargs):
        loss = masked_mean(-advantages * logprob, action_mask)
        return loss, {"plain_loss": loss.item()}

    @classmethod
    def default_args(cls): return {}
"""

import inspect
from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ClassVar

from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.plugins import Registry
from trinity.rft.algorithm.key_mapper import ALL_MAPPERS, KeyMapper

POLICY_LOSS_FN: Registry[Any] = POLICY_LOSSES
_BUILT_IN: Mapping[str, str] = {
    "CISPOPolicyLossFn": "cispo",
    "DPOLossFn": "dpo",
    "GSPOLossFn": "gspo",
    "ImportanceSamplingLossFn": "importance_sampling",
    "MIXCHORDPolicyLossFn": "mix_chord",
    "MIXPolicyLossFn": "mix",
    "OPMDPolicyLossFn": "opmd",
    "PPOPolicyLossFn": "ppo",
    "RECPolicyLossFn": "rec",
    "SAPOPolicyLossFn": "sapo",
    "SFTISLossFn": "sft_is",
    "SFTLossFn": "sft",
    "SFTPhiLossFn": "sft_phi",
    "TOPRPolicyLossFn": "topr",
    "sPPOPolicyLossFn": "sppo",
}
"""Trinity-RFT's class names of built-in functions."""


class PolicyLossFnMeta(ABCMeta):
    """Reads the tensors that a loss wants from the parameters of its `__call__`."""

    ignore_keys = frozenset({"self", "args", "kwargs", "logprob"})

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any
    ) -> "PolicyLossFnMeta":
        """Adds the names, and a `__call__` that takes those of either framework."""
        if (call := namespace.get("__call__")) is not None:
            names = [
                key for key in inspect.signature(call).parameters if key not in mcs.ignore_keys
            ]
            namespace.setdefault("wanted_keys", names)
            namespace["__call__"] = _with_names_of_both(call)
        return super().__new__(mcs, name, bases, namespace, **kwargs)


def _with_names_of_both(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def named(self: "PolicyLossFn", *args: Any, **kwargs: Any) -> Any:
        translated = {self.mapper.to_trinity(key): value for key, value in kwargs.items()}
        wanted = {"logprob", *self.wanted_keys}
        return call(self, *args, **{k: v for k, v in translated.items() if k in wanted})

    return named


class PolicyLossFn(ABC, metaclass=PolicyLossFnMeta):
    """Base of policy losses that were written for Trinity-RFT."""

    backend = "verl"
    mapper: KeyMapper = ALL_MAPPERS["verl"]
    wanted_keys: ClassVar[list[str]]
    """The wanted tensors, by the names of the loss."""

    def __init__(self, backend: str = "verl") -> None:
        self.backend = backend
        self.mapper = ALL_MAPPERS[backend]

    @property
    def select_keys(self) -> list[str]:
        """The wanted tensors, by the names of the trainer's batch."""
        return [self.mapper.from_trinity(key) for key in self.wanted_keys]

    @abstractmethod
    def __call__(self, logprob: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the loss of these rows, one number, and metrics."""

    @classmethod
    @abstractmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns the defaults of the constructor's arguments."""


def adapt_policy_loss(name: str, source: type) -> object:
    """Returns the class as a part; called when one is registered or named by its path."""
    from trinity.rft.algorithm.policy_loss_fn.adapting import adapted_loss  # it imports torch

    return adapted_loss(name, source)


def __getattr__(name: str) -> Any:
    """Returns a class of Trinity-RFT's own, made on demand, as it imports torch."""
    if (function := _BUILT_IN.get(name)) is None:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from trinity.rft.algorithm.policy_loss_fn.adapting import loss_class

    return loss_class(name, function)
