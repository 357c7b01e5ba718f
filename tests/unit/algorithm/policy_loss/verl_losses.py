"""verl's own functions, called as its workers call them."""

import functools
import importlib
import types
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.unit.algorithm.policy_loss.batches import Outcome
from trinity.algorithm.policy_loss.inputs import PolicyInputs


@functools.cache
def core_algos() -> types.ModuleType:
    """Takes seconds, and warns of what is not ours to mend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from services.trainer.backend import cpu

        cpu.install()
        found: types.ModuleType = importlib.import_module("verl.trainer.ppo.core_algos")
    return found


@dataclass(frozen=True, slots=True)
class VerlLoss:
    """A loss by verl's name with settings by verl's names."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    policy_loss: dict[str, Any] = field(default_factory=dict)

    def __call__(
        self, inputs: PolicyInputs, mode: str, factors_BT: torch.Tensor | None = None
    ) -> Outcome:
        logprobs_BT = inputs.logprobs_BT.clone().requires_grad_()
        loss, metrics = core_algos().get_policy_loss_fn(self.name)(
            old_log_prob=inputs.old_logprobs_BT,
            log_prob=logprobs_BT,
            advantages=inputs.advantages_BT,
            response_mask=inputs.mask_BT.to(logprobs_BT.dtype),
            loss_agg_mode=mode,
            config=self._config(),
            rollout_is_weights=factors_BT,
        )
        loss.backward()
        assert logprobs_BT.grad is not None
        figures = {name.removeprefix("actor/"): value for name, value in metrics.items()}
        return Outcome(loss.detach(), logprobs_BT.grad, figures)

    def _config(self) -> object:
        core_algos()
        from verl.workers.config import FSDPActorConfig
        from verl.workers.config.actor import PolicyLossConfig

        return FSDPActorConfig(
            strategy="fsdp2",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            policy_loss=PolicyLossConfig(**self.policy_loss),
            **self.settings,
        )
