"""What compares the rows of an update follows the policy from update to update.

The other side is a loop of plain torch over single rows in double precision, with the losses as
their authors' programs have them and gradients by autograd: M2PO (Infini-AI-Lab/M2PO), GVPO (verl's
recipe), KTO (ContextualAI/HALOs), DPO on pairs of rollouts (TRL's online_dpo), Clip-Cov and KL-Cov
(PRIME-RL/Entropy-Mechanism-of-RL), and verl's bypass mode.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from services.trainer.types import TrainBatch, TrainRow
from tests.integration.trainer.learners import Arrays, Build, stepped
from tests.unit.trainer.builders import make_plan, random_batch
from trinity.algorithm.rollout_correction.settings import CorrectionSettings
from trinity.config.plan.parts import TrainStepUnit
from trinity.config.plan.stage_plan import StagePlan

if TYPE_CHECKING:
    from services.trainer.learner.learner import Learner

RATE = 0.05
Rows = Sequence[TrainRow]
Loss = Callable[[Rows, "Policies"], torch.Tensor]
Groups = list[list[int]]


class Policies:
    """Log-probabilities of the trained tokens of each row, by the policy as it is and others."""

    def __init__(self, model: Any, reference: Any, rows: Rows) -> None:
        self.now = [logprobs_of(model, row) for row in rows]
        with torch.no_grad():
            self.reference = [logprobs_of(reference, row) for row in rows]
        self.rollout = [torch.from_numpy(row.rollout_logprobs)[mask_of(row)] for row in rows]
        self.advantages = [torch.from_numpy(row.advantages)[mask_of(row)].double() for row in rows]

    def ratios(self) -> tuple[torch.Tensor, torch.Tensor]:
        """log p - log p_rollout and the advantage of all tokens."""
        return torch.cat(self.now) - torch.cat(self.rollout), torch.cat(self.advantages)

    def changes(self, other: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The log-ratio to another policy of each row."""
        return [now.sum() - then.double().sum() for now, then in zip(self.now, other, strict=True)]


def mask_of(row: TrainRow) -> torch.Tensor:
    return torch.from_numpy(row.mask)


def logprobs_of(model: Any, row: TrainRow) -> torch.Tensor:
    tokens = torch.from_numpy(row.tokens.astype(np.int64))
    logits = model(tokens[None]).logits[0, row.prompt_length - 1 : -1]
    taken = tokens[row.prompt_length :, None]
    return logits.log_softmax(-1).gather(-1, taken)[:, 0][mask_of(row)]


def groups_of(rows: Rows) -> Groups:
    groups: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        assert row.run_reward is not None
        groups.setdefault(row.run_reward.assignment_id, []).append(number)
    return list(groups.values())


def rewards_of(rows: Rows) -> list[float]:
    return [row.run_reward.reward for row in rows if row.run_reward is not None]


def m2po(_: Rows, policies: Policies) -> torch.Tensor:
    log_ratios, advantages = policies.ratios()
    harmful = sorted(
        float(log_ratio) ** 2
        for log_ratio, advantage in zip(log_ratios.detach(), advantages, strict=True)
        if log_ratio * advantage > 0
    )
    largest = 1000.0
    if harmful and sum(harmful) / len(harmful) > 0.04:
        largest = 0.0
        for square in harmful:
            if sum(min(square, other) for other in harmful) / len(harmful) <= 0.04:
                largest = square**0.5
    low = max(1 - np.exp(-largest), 0.3)
    high = max(np.exp(min(largest, 20.0)) - 1, 0.5)
    ratios = log_ratios.exp()
    cut = ratios.clamp(1 - low, 1 + high)
    return torch.maximum(-advantages * ratios, -advantages * cut).mean()


def gvpo(rows: Rows, policies: Policies, beta: float = 0.5) -> torch.Tensor:
    changes, rewards = policies.changes(policies.rollout), rewards_of(rows)
    total = torch.zeros((), dtype=torch.float64)
    for group in groups_of(rows):
        reached = torch.stack([beta * changes[number] for number in group])
        aims = torch.tensor([rewards[number] for number in group], dtype=torch.float64)
        errors = reached - reached.mean() - (aims - aims.mean())
        total = total + errors.square().sum() / 2 / (len(group) - 1) * len(group) / len(rows)
    return total


def kto(rows: Rows, policies: Policies, beta: float = 0.5) -> torch.Tensor:
    changes, rewards = policies.changes(policies.reference), rewards_of(rows)
    shift = torch.stack(changes).detach().mean().clamp(min=0)
    losses = []
    for group in groups_of(rows):
        mean = sum(rewards[number] for number in group) / len(group)
        for number in group:
            if rewards[number] != mean:
                sign = 1 if rewards[number] > mean else -1
                losses.append(1 - torch.sigmoid(sign * beta * (changes[number] - shift)))
    return torch.stack(losses).mean()


def online_dpo(rows: Rows, policies: Policies, beta: float = 0.5) -> torch.Tensor:
    changes, rewards = policies.changes(policies.reference), rewards_of(rows)
    losses = []
    for group in groups_of(rows):
        best = max(group, key=lambda number: rewards[number])
        worst = min(group, key=lambda number: rewards[number])
        if rewards[best] > rewards[worst]:
            margin = beta * (changes[best] - changes[worst])
            losses.append(-torch.nn.functional.logsigmoid(margin))
    return torch.stack(losses).mean()


def covariances(policies: Policies) -> torch.Tensor:
    now, advantages = torch.cat(policies.now).detach(), torch.cat(policies.advantages)
    return (advantages - advantages.mean()) * (now - now.mean())


def clip_cov(_: Rows, policies: Policies) -> torch.Tensor:
    """Without chance: as many tokens are taken as there may be."""
    log_ratios, advantages = policies.ratios()
    plain = -advantages * log_ratios.exp()
    cut = -advantages * log_ratios.exp().clamp(0.8, 1.2)
    found = covariances(policies)
    is_taken = (found > 0.1) & (found < 5.0) & (cut <= plain)
    return torch.where(is_taken, 0.0, torch.maximum(plain, cut)).mean()


def kl_cov(_: Rows, policies: Policies) -> torch.Tensor:
    log_ratios, advantages = policies.ratios()
    taken = covariances(policies).topk(int(0.2 * len(advantages))).indices
    pulls = torch.zeros_like(log_ratios)
    pulls[taken] = log_ratios[taken].abs()
    return (pulls - advantages * log_ratios.exp()).mean()


def gpg(_: Rows, policies: Policies) -> torch.Tensor:
    """REINFORCE with truncated weights to the rollout policy."""
    log_ratios, advantages = policies.ratios()
    weights = log_ratios.detach().exp().clamp(max=1.5)
    return (-weights * advantages * torch.cat(policies.now)).mean()


BETA = {"advantage_fn_args": {"beta": 0.5}}
ON_GRPO: dict[str, tuple[str, dict[str, object]]] = {
    "clip_cov": ("policy_loss_fn_args", {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.1}),
    "kl_cov": ("policy_loss_fn_args", {"kl_cov_ratio": 0.2}),
    "gpg": ("rollout_correction", {"rollout_is": "token", "rollout_is_threshold": 1.5}),
}
LOSSES: dict[str, tuple[Loss, dict[str, object]]] = {
    "m2po": (m2po, {"algorithm_type": "m2po"}),
    **{
        loss.__name__: (loss, {"algorithm_type": loss.__name__, **BETA})
        for loss in (gvpo, kto, online_dpo)
    },
    **{
        loss.__name__: (
            loss,
            {"algorithm_type": "grpo", "policy_loss_fn": loss.__name__, key: args},
        )
        for loss in (clip_cov, kl_cov, gpg)
        for key, args in [ON_GRPO[loss.__name__]]
    },
}


def plan_of(
    model: Path, name: str, num_passes: int, max_tokens: int = 8192, step: TrainStepUnit = "rows"
) -> StagePlan:
    algorithm = {
        "repeat_times": 4,
        "kl_loss_fn": "none",
        "entropy_loss_fn": "none",
        "optimizer": {"optimizer_type": "sgd", "lr": RATE, "weight_decay": 0.0},
        **LOSSES[name][1],
    }
    trainer = {"ppo_epochs": num_passes, "grad_clip": 1e9, "max_token_len_per_gpu": max_tokens}
    return make_plan(model, algorithm, trainer).with_train_step(step)


@lru_cache
def double(model: Path, number: int = 0) -> Any:
    """The model in double precision; two numbers are two of them."""
    del number
    return AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float64, attn_implementation="eager"
    )


def rollouts_of(batch: TrainBatch, model: Path, name: str) -> TrainBatch:
    """The batch as if this model had sampled it; |log r| has no gradient there."""
    if name == "kl_cov":
        return batch
    policy = double(model)
    rows = []
    for row in batch.rows:
        whole = replace(row, mask=np.ones_like(row.mask))
        with torch.no_grad():
            rows.append(replace(row, rollout_logprobs=logprobs_of(policy, whole).float().numpy()))
    return replace(batch, rows=rows)


Update = tuple[Arrays, Arrays]
"""The weights that an update begins with, and its gradients."""


def updates_of(learner: "Learner", batch: TrainBatch) -> list[Update]:
    engine = learner._roles.actor.worker.engine
    take_step, found = engine.optimizer_step, []

    def watch() -> float:
        named = dict(engine.module.named_parameters())
        weights = {
            key: weight.full_tensor().detach().numpy().copy() for key, weight in named.items()
        }
        gradients = {key: weight.grad.full_tensor().numpy().copy() for key, weight in named.items()}
        found.append((weights, gradients))
        norm: float = take_step()
        return norm

    engine.optimizer_step = watch
    stepped(learner, batch, RATE)
    return found


def worst_error(found: Sequence[Update], model: Path, name: str, rows: Sequence[Rows]) -> float:
    """The largest distance of an update's gradients to those by hand, as a share of their length.

    Each is held against the loss at the weights that it began with: differences of rounding would
    grow from update to update.
    """
    policy, reference = double(model, 1), double(model)
    shares: list[float] = []
    for (weights, gradients), of_update in zip(found, rows, strict=True):
        for key, weight in policy.named_parameters():
            weight.data = torch.from_numpy(weights[key]).double()
        policy.zero_grad()
        LOSSES[name][0](of_update, Policies(policy, reference, of_update)).backward()
        gap = length = 0.0
        for key, weight in policy.named_parameters():
            gap += float((weight.grad - torch.from_numpy(gradients[key])).square().sum())
            length += float(weight.grad.square().sum())
        shares.append((gap / length) ** 0.5)
    return max(shares)


@pytest.mark.parametrize("name", LOSSES)
def test_each_of_eight_passes_has_the_gradient_of_the_authors_loss(
    learner_of: Build, model: Path, name: str
) -> None:
    batch = rollouts_of(random_batch(16, seed=5), model, name)
    found = updates_of(learner_of(plan_of(model, name, 8)), batch)
    assert worst_error(found, model, name, [batch.rows] * 8) < 1e-5


@pytest.mark.parametrize("name", LOSSES)
def test_updates_of_an_explore_step_each_compare_their_own_rows(
    learner_of: Build, model: Path, name: str
) -> None:
    """Of 32 rows 16 an update, twice; micro-batches are small."""
    batch = rollouts_of(random_batch(32, seed=6), model, name)
    plan = plan_of(model, name, 2, max_tokens=80, step="explore_step")
    found = updates_of(learner_of(plan), batch)
    assert worst_error(found, model, name, [batch.rows[:16], batch.rows[16:]] * 2) < 1e-5


@pytest.mark.parametrize("num_passes", [1, 4])
def test_the_policy_is_asked_once_for_each_update(
    learner_of: Build, model: Path, monkeypatch: pytest.MonkeyPatch, num_passes: int
) -> None:
    """The first update begins with the policy that was asked before the step."""
    learner, asked = learner_of(plan_of(model, "kto", num_passes)), []
    actor: Any = learner._roles.actor
    compute = actor.compute_outputs

    def counting(*arguments: Any) -> Any:
        asked.append(arguments)
        return compute(*arguments)

    monkeypatch.setattr(actor, "compute_outputs", counting)
    stepped(learner, random_batch(16, seed=5), RATE)
    assert len(asked) == num_passes


def test_an_update_without_a_token_that_is_left_takes_no_step(
    learner_of: Build, model: Path
) -> None:
    """After the first pass all rows are too far from the rollout policy."""
    plan = plan_of(model, "gpg", 3)
    correction = CorrectionSettings(rollout_rs="seq_max_k2", rollout_rs_threshold=1e-9)
    algorithm = plan.algorithm.model_copy(update={"rollout_correction": correction})
    learner = learner_of(plan.model_copy(update={"algorithm": algorithm}))
    batch = rollouts_of(random_batch(16, seed=5), model, "gpg")
    assert len(updates_of(learner, batch)) == 1
