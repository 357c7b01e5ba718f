"""A file as users of Trinity-RFT bring it: parts are classes, from where they import them."""

from typing import Any

import torch

from trinity.algorithm.advantage_fn import ADVANTAGE_FN, AdvantageFn, GroupAdvantage
from trinity.algorithm.algorithm import ALGORITHM_TYPE, AlgorithmType
from trinity.algorithm.entropy_loss_fn import ENTROPY_LOSS_FN, EntropyLossFn
from trinity.algorithm.kl_fn import KL_FN, KLFn
from trinity.algorithm.policy_loss_fn import (
    POLICY_LOSS_FN,
    PolicyLossFn,
    PPOPolicyLossFn,
    SFTLossFn,
)
from trinity.algorithm.sample_strategy import SAMPLE_STRATEGY, MixSampleStrategy
from trinity.algorithm.utils import aggregate_loss, masked_mean
from trinity.buffer.operators import (
    EXPERIENCE_OPERATORS,
    ExperienceOperator,
    ExperienceOperatorV1,
)


@POLICY_LOSS_FN.register_module("classes_clipped")
class Clipped(PolicyLossFn):
    """A policy gradient whose log-ratio is bounded."""

    def __init__(self, backend: str = "verl", bound: float = 1.0, loss_agg_mode: str = "x") -> None:
        super().__init__(backend=backend)
        self.bound = bound
        self.loss_agg_mode = loss_agg_mode

    def __call__(  # type: ignore[override]
        self,
        logprob: torch.Tensor,
        old_logprob: torch.Tensor,
        action_mask: torch.Tensor,
        advantages: torch.Tensor,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Returns the loss; `kwargs` must stay empty."""
        assert not kwargs
        ratio = (logprob - old_logprob).clamp(-self.bound, self.bound).exp()
        loss = aggregate_loss(-advantages * ratio, action_mask, self.loss_agg_mode)
        ratio_mean = masked_mean(ratio, action_mask)
        return loss, {"loss": loss.item(), "ratio": ratio_mean.item(), "note": "no number"}

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns the arguments."""
        return {"bound": 0.5, "loss_agg_mode": "token-mean"}


@POLICY_LOSS_FN.register_module("classes_attribute")
class Attribute(PolicyLossFn):
    """Has an argument that its constructor does not take, and calls no constructor of its base."""

    def __init__(self, tau: float = 1.0) -> None:
        self.tau = tau

    def __call__(  # type: ignore[override]
        self, logprob: torch.Tensor, ref_logprob: torch.Tensor, action_mask: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Returns the loss."""
        mode: str = self.loss_agg_mode  # type: ignore[attr-defined]
        return aggregate_loss(self.tau * (ref_logprob - logprob), action_mask, mode), {}

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns the arguments."""
        return {"tau": 2.0, "loss_agg_mode": "seq-mean-token-mean"}


@POLICY_LOSS_FN.register_module("classes_mixed")
class Mixed(PolicyLossFn):
    """Trinity-RFT's own losses, each on its rows."""

    def __init__(
        self, backend: str = "verl", mu: float = 0.1, clip_range: float | None = None
    ) -> None:
        super().__init__(backend=backend)
        self.mu = mu
        self.usual = PPOPolicyLossFn(clip_range=clip_range, loss_agg_mode="token-mean")
        self.expert = SFTLossFn(loss_agg_mode="token-mean")

    def __call__(  # type: ignore[override]
        self,
        logprob: torch.Tensor,
        old_logprob: torch.Tensor,
        action_mask: torch.Tensor,
        advantages: torch.Tensor,
        expert_mask: torch.Tensor,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Returns the loss; rows of one kind may be missing."""
        usual = expert = torch.tensor(0.0)
        if (~expert_mask).any():
            given = (own[~expert_mask] for own in (logprob, old_logprob, action_mask, advantages))
            usual, _ = self.usual(*given, **kwargs)
        if expert_mask.any():
            expert, _ = self.expert(logprob[expert_mask], action_mask[expert_mask])
        return (1 - self.mu) * usual + self.mu * expert, {"expert/sft": expert.item()}

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns the arguments."""
        return {"mu": 0.25, "clip_range": 0.2}


class Unsaid(Clipped):
    """The same, without saying how it averages."""

    def __init__(self) -> None:
        super().__init__(bound=0.5)
        del self.loss_agg_mode

    def __call__(  # type: ignore[override]
        self,
        logprob: torch.Tensor,
        old_logprob: torch.Tensor,
        action_mask: torch.Tensor,
        advantages: torch.Tensor,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Returns the loss."""
        ratio = (logprob - old_logprob).clamp(-self.bound, self.bound).exp()
        return masked_mean(-advantages * ratio, action_mask), {}

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns the arguments."""
        return {}


@ADVANTAGE_FN.register_module("classes_centred")
class Centred(GroupAdvantage):
    """The reward less the group's mean; a group of equal rewards is dropped."""

    def __init__(self, scale: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale = scale

    def group_experiences(self, exps: list[Any]) -> dict[str, list[Any]]:
        """Returns the experiences by task."""
        tasks = dict.fromkeys(exp.eid.tid for exp in exps)
        return {tid: [exp for exp in exps if exp.eid.tid == tid] for tid in tasks}

    def calculate_group_advantage(
        self, group_id: str, exps: list[Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Sets the advantages."""
        rewards = torch.tensor([exp.reward for exp in exps])
        if rewards.std() == 0:
            return [], {"reward_mean": rewards.mean().item()}
        for exp in exps:
            exp.advantages = self.scale * (exp.reward - rewards.mean()) * exp.action_mask
        return exps, {"reward_mean": rewards.mean().item()}


@ADVANTAGE_FN.register_module("classes_tokens")
class Tokens(AdvantageFn):
    """The sum of a row's rewards, at each token, in the trainer."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, exps: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Writes the advantages."""
        scores = exps.batch["token_level_rewards"].sum(-1, keepdim=True)
        exps.batch["advantages"] = self.scale * scores * exps.batch["response_mask"]
        return exps, {"num_tasks": len(set(exps.non_tensor_batch["uid"]))}

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns the arguments."""
        return {"scale": 3.0}


@KL_FN.register_module("classes_halved")
class Halved(KLFn):
    """Half of k2."""

    def calculate_kl(self, logprob: Any, ref_logprob: Any, old_logprob: Any = None) -> Any:
        """Returns the divergence."""
        return (logprob - ref_logprob).square() / 4

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns the arguments."""
        return {"adaptive": False, "kl_coef": 0.25}


@ENTROPY_LOSS_FN.register_module("classes_entropy")
class Entropy(EntropyLossFn):
    """A tenth of the entropy."""

    def __call__(
        self, entropy: torch.Tensor, action_mask: torch.Tensor, **kwargs: Any
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Returns the term."""
        loss = masked_mean(entropy, action_mask) / 10
        return loss, {"entropy_loss": loss.item()}

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns the arguments."""
        return {}


@SAMPLE_STRATEGY.register_module("classes_experts")
class Experts(MixSampleStrategy):
    """Three quarters of a batch are an expert's."""

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns the arguments."""
        return {"expert_data_ratio": 0.75}


@ALGORITHM_TYPE.register_module("classes_algorithm")
class Algorithm(AlgorithmType):
    """All of them together."""

    use_critic: bool = False
    use_reference: bool = True
    compute_advantage_in_trainer: bool = False
    can_balance_batch: bool = True
    schema: str = "experience"

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        """Returns the parts."""
        return {
            "repeat_times": 3,
            "sample_strategy": "warmup",
            "kl_penalty_fn": "none",
            "advantage_fn": "classes_centred",
            "advantage_fn_args": {"scale": 2.0},
            "policy_loss_fn": "classes_attribute",
            "kl_loss_fn": "none",
            "entropy_loss_fn": "classes_entropy",
        }


@EXPERIENCE_OPERATORS.register_module("classes_shaped")
class Shaped(ExperienceOperator):
    """Drops bad experiences, adds a bonus that the workflow measured, and masks cut ones."""

    def __init__(self, threshold: float = 0.0) -> None:
        self.threshold = threshold

    def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Changes the experiences."""
        kept = [exp for exp in exps if exp.reward >= self.threshold]
        for exp in kept:
            exp.reward += exp.info.get("bonus", 0.0)
            exp.info["seen"] = 1
            if exp.truncate_status == "response_truncated":
                exp.action_mask = torch.zeros_like(exp.action_mask)
        return kept, {"filtered_count": len(exps) - len(kept), "SELECTOR_METRIC": {0: {}}}


@EXPERIENCE_OPERATORS.register_module("classes_async")
class Asynchronous(ExperienceOperatorV1):
    """Doubles rewards, once it is prepared."""

    factor = 0

    async def prepare(self) -> None:
        """Prepares it; twice would be wrong."""
        self.factor += 2

    async def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Doubles them."""
        for exp in exps:
            exp.reward *= self.factor
        return exps, {}
