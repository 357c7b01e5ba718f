"""VAPO, PF-PPO, GFPO, GVPO and GRPO with a teacher, against slow loops and verl's functions."""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Literal
from unittest import mock

import numpy as np
import pytest
import torch
from verl.trainer.ppo import core_algos

from tests.unit.algorithm.policy_loss.batches import outcome
from tests.unit.algorithm.policy_loss.verl_losses import VerlLoss
from tests.unit.algorithm.token_advantage.batches import assert_close, random_batch
from tests.unit.subtests import as_subtests
from trinity.algorithm.policy_loss.gpg import gpg
from trinity.algorithm.policy_loss.inputs import PolicyInputs
from trinity.algorithm.policy_loss.ppo import ppo as ppo_loss
from trinity.algorithm.token_advantage.gfpo import gfpo
from trinity.algorithm.token_advantage.grpo_distill import grpo_distill
from trinity.algorithm.token_advantage.grpo_verl import grpo_verl
from trinity.algorithm.token_advantage.gvpo import gvpo
from trinity.algorithm.token_advantage.pf_ppo import pf_ppo
from trinity.algorithm.token_advantage.ppo import ppo
from trinity.algorithm.token_advantage.token_batch import TokenBatch
from trinity.algorithm.token_advantage.vapo import vapo

SEEDS = range(6)
GAMMA = 0.97


@pytest.fixture(params=SEEDS)
def batch(request: pytest.FixtureRequest) -> TokenBatch:
    return random_batch(request.param, gaps=request.param % 2 == 1)


def places(batch: TokenBatch, row: int) -> list[int]:
    return [int(place) for place in np.flatnonzero(batch.mask_BT[row])]


def groups(batch: TokenBatch) -> Iterator[list[int]]:
    rows: dict[int, list[int]] = defaultdict(list)
    for row, group in enumerate(batch.groups_B):
        rows[int(group)].append(row)
    yield from rows.values()


def gae(batch: TokenBatch, row: int, lam: float) -> dict[int, float]:
    """By token, before whitening."""
    assert batch.values_BT is not None
    found: dict[int, float] = {}
    later = next_value = 0.0
    for t in reversed(places(batch, row)):
        delta = batch.rewards_BT[row, t] + GAMMA * next_value - batch.values_BT[row, t]
        later, next_value = delta + GAMMA * lam * later, batch.values_BT[row, t]
        found[t] = later
    return found


@pytest.mark.parametrize("least", [0.0, 0.4])
@pytest.mark.parametrize("lam", [None, 0.9])
def test_vapo_has_one_lambda_for_the_critic_and_one_by_length_for_the_policy(
    batch: TokenBatch, lam: float | None, least: float
) -> None:
    assert batch.values_BT is not None
    values, at = [], []
    returns_BT = np.zeros(batch.mask_BT.shape)
    for row in range(len(batch.groups_B)):
        length = len(places(batch, row))
        own = max(1 - 1 / (0.2 * length), least) if lam is None else lam
        for t, advantage in gae(batch, row, own).items():
            values.append(advantage)
            at.append((row, t))
        for t, advantage in gae(batch, row, 0.95).items():
            returns_BT[row, t] = advantage + batch.values_BT[row, t]
    mean = math.fsum(values) / len(values)
    variance = math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1)
    expected_BT = np.zeros(batch.mask_BT.shape)
    for place, value in zip(at, values, strict=True):
        expected_BT[place] = (value - mean) / math.sqrt(variance + 1e-8)
    found = vapo(batch, gamma=GAMMA, lam=lam, alpha=0.2, least_lam=least, critic_lam=0.95)
    assert_close(found.advantages_BT, expected_BT, 1e-7)
    assert found.returns_BT is not None
    assert_close(found.returns_BT, returns_BT)


def test_vapo_with_one_lambda_for_both_is_gae(batch: TokenBatch) -> None:
    found, expected = vapo(batch, lam=0.9, critic_lam=0.9), ppo(batch, lam=0.9)
    assert_close(found.advantages_BT, expected.advantages_BT)
    assert found.returns_BT is not None and expected.returns_BT is not None
    assert_close(found.returns_BT, expected.returns_BT)


def test_the_critics_targets_are_the_rewards_to_come_whatever_it_believed(
    batch: TokenBatch,
) -> None:
    assert batch.values_BT is not None
    other = replace(batch, values_BT=3.0 - 2.0 * batch.values_BT)
    first, second = vapo(batch).returns_BT, vapo(other).returns_BT
    assert first is not None and second is not None
    assert_close(first, second)


@as_subtests("method", ["pow", "max_min", "max_random"])
@as_subtests("power", [2.0, 0.5])
def test_pf_ppo_counts_a_row_as_often_as_verl_draws_it(
    batch: TokenBatch, method: Literal["pow", "max_min", "max_random"], power: float
) -> None:
    scores_B = np.random.default_rng(4).choice([-1.0, 0.5, 0.5, 2.0], len(batch.groups_B))
    rewards_BT = np.zeros(batch.mask_BT.shape)
    rewards_BT[:, 0] = scores_B
    batch = replace(batch, rewards_BT=rewards_BT)
    weights_B: list[torch.Tensor] = []

    def multinomial(weights: torch.Tensor, number: int, replacement: bool) -> torch.Tensor:
        assert replacement and number == len(weights)
        weights_B.append(weights)
        return torch.arange(number)

    scores_BT = torch.from_numpy(batch.rewards_BT)
    batch_of_verl = mock.MagicMock(return_value=None)
    batch_of_verl.items.return_value = [("token_level_scores", scores_BT)]
    batch_of_verl.__getitem__.return_value = scores_BT
    data = SimpleNamespace(batch=batch_of_verl, non_tensor_batch={}, meta_info={})
    with mock.patch.object(torch, "multinomial", multinomial):
        core_algos.compute_pf_ppo_reweight_data(data, method, power)
    [drawn_B] = weights_B
    shares_B = (len(drawn_B) * drawn_B / drawn_B.sum()).numpy()
    found = pf_ppo(batch, gamma=GAMMA, lam=0.9, reweight_method=method, weight_pow=power)
    usual = ppo(batch, gamma=GAMMA, lam=0.9)
    assert_close(found.advantages_BT, usual.advantages_BT * shares_B[:, None], 1e-7)
    assert found.returns_BT is not None and usual.returns_BT is not None
    assert_close(found.returns_BT, usual.returns_BT)
    assert np.ptp(shares_B) > 0.01


def test_pf_ppo_looks_at_scores_before_the_penalty(batch: TokenBatch) -> None:
    raw = np.zeros(len(batch.groups_B))
    raw[2] = 5.0
    found = pf_ppo(replace(batch, unpenalised_B=raw), weight_pow=1.0)
    usual = ppo(batch)
    assert_close(found.advantages_BT[2], len(raw) * usual.advantages_BT[2], 1e-5)
    assert np.abs(np.delete(found.advantages_BT, 2, axis=0)).max() < 1e-5


@as_subtests("metric", ["length", "token_efficiency"])
@as_subtests("num_kept", [1, 2, 3])
def test_gfpo_is_grpo_among_the_best_of_each_group(
    batch: TokenBatch, metric: Literal["length", "token_efficiency"], num_kept: int
) -> None:
    expected_BT = np.zeros(batch.mask_BT.shape)
    mask_BT = np.zeros_like(batch.mask_BT)
    scores = [math.fsum(row) for row in batch.rewards_BT]
    lengths = [len(places(batch, row)) for row in range(len(scores))]
    for rows in groups(batch):
        cost = {
            row: lengths[row] if metric == "length" else -scores[row] / lengths[row] for row in rows
        }
        border = sorted(cost.values())[:num_kept][-1]
        kept = [row for row in rows if cost[row] <= border]
        own = [scores[row] for row in kept]
        mean = sum(own) / len(own) if len(own) > 1 else 0.0
        std = float(np.std(own, ddof=1)) if len(own) > 1 else 1.0
        for row in kept:
            mask_BT[row] = batch.mask_BT[row]
            expected_BT[row] = (scores[row] - mean) / (std + 1e-6) * batch.mask_BT[row]
    found = gfpo(batch, num_kept=num_kept, metric=metric)
    assert found.mask_BT is not None
    assert (found.mask_BT == mask_BT).all()
    assert 0 < mask_BT.sum() < batch.mask_BT.sum()
    assert_close(found.advantages_BT, expected_BT)


def test_gfpo_that_keeps_all_is_grpo_and_never_keeps_a_row_without_tokens(
    batch: TokenBatch,
) -> None:
    whole = gfpo(batch, num_kept=99)
    assert_close(whole.advantages_BT, grpo_verl(batch).advantages_BT)
    empty = batch.mask_BT.copy()
    empty[0] = False
    groups_B = np.zeros(len(batch.groups_B), np.int64)
    kept = gfpo(replace(batch, mask_BT=empty, groups_B=groups_B), num_kept=1).mask_BT
    assert kept is not None and kept.any(-1).sum() >= 1 and not kept[0].any()


@pytest.mark.parametrize("beta", [0.1, 0.7])
def test_gvpos_gradient_is_that_of_the_squared_error_within_groups(
    batch: TokenBatch, beta: float
) -> None:
    logprobs_BT = torch.from_numpy(batch.logprobs_BT).requires_grad_()
    old_BT = torch.from_numpy(batch.rollout_logprobs_BT)
    mask_BT = torch.from_numpy(batch.mask_BT)
    scores_B = torch.from_numpy(batch.rewards_BT).sum(-1)
    total = torch.zeros((), dtype=torch.float64)
    for rows in groups(batch):
        if len(rows) < 2:
            continue
        changes = beta * torch.stack(
            [(logprobs_BT[row] - old_BT[row])[mask_BT[row]].sum() for row in rows]
        )
        rewards = torch.stack([scores_B[row] for row in rows])
        gaps = (changes - changes.detach().mean()) - (rewards - rewards.mean())
        of_rows = 0.5 * gaps.square() / (len(rows) - 1)
        total = total + len(rows) * of_rows.sum() / len(batch.groups_B)
    total.backward()
    advantages_BT = torch.from_numpy(gvpo(batch, beta=beta).advantages_BT)
    inputs = PolicyInputs(
        logprobs_BT=torch.from_numpy(batch.logprobs_BT),
        old_logprobs_BT=old_BT,
        advantages_BT=advantages_BT,
        mask_BT=mask_BT,
    )
    found = outcome(gpg, inputs, "seq-mean-token-sum")
    assert logprobs_BT.grad is not None
    torch.testing.assert_close(found.gradient_BT, logprobs_BT.grad, rtol=1e-9, atol=1e-12)


def test_gvpo_is_at_rest_at_the_policy_that_a_kl_term_of_beta_allows() -> None:
    batch = random_batch(3, gaps=False)
    groups_B, beta = np.zeros(len(batch.groups_B), np.int64), 0.5
    first_B = batch.mask_BT.argmax(-1)
    moved_BT = batch.rollout_logprobs_BT.copy()
    moved_BT[np.arange(len(first_B)), first_B] += batch.scores_B / beta
    at_rest = gvpo(replace(batch, groups_B=groups_B, logprobs_BT=moved_BT), beta=beta)
    assert np.abs(at_rest.advantages_BT).max() < 1e-9
    elsewhere = gvpo(replace(batch, groups_B=groups_B), beta=beta)
    assert np.abs(elsewhere.advantages_BT).max() > 0.01


def test_grpo_with_a_teacher_is_the_sum_of_both(batch: TokenBatch) -> None:
    assert batch.teacher_logprobs_BT is not None
    gaps_BT = np.clip(batch.teacher_logprobs_BT - batch.logprobs_BT, -0.5, 0.5)
    expected_BT = grpo_verl(batch).advantages_BT + 0.3 * gaps_BT * batch.mask_BT
    found = grpo_distill(batch, kl_coef=0.3, max_gap=0.5)
    assert_close(found.advantages_BT, expected_BT)
    assert_close(grpo_distill(batch, kl_coef=0.0).advantages_BT, grpo_verl(batch).advantages_BT)


def test_on_policy_it_has_the_gradient_of_verls_two_losses(batch: TokenBatch) -> None:
    """verl: the task's clipped loss, plus a coefficient times that of the teacher's penalty."""
    assert batch.teacher_logprobs_BT is not None
    logprobs_BT = torch.from_numpy(batch.logprobs_BT * batch.mask_BT)

    def inputs(advantages_BT: np.ndarray) -> PolicyInputs:
        return PolicyInputs(
            logprobs_BT=logprobs_BT,
            old_logprobs_BT=logprobs_BT,
            advantages_BT=torch.from_numpy(advantages_BT),
            mask_BT=torch.from_numpy(batch.mask_BT),
        )

    vanilla = VerlLoss("vanilla", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2})
    task = vanilla(inputs(grpo_verl(batch).advantages_BT), "token-mean")
    penalty_BT = core_algos.kl_penalty(
        torch.from_numpy(batch.logprobs_BT), torch.from_numpy(batch.teacher_logprobs_BT), "k1"
    ).clamp(-0.8, 0.8)
    teacher = vanilla(inputs(-penalty_BT.numpy() * batch.mask_BT), "token-mean")
    ours = outcome(ppo_loss, inputs(grpo_distill(batch, kl_coef=0.4, max_gap=0.8).advantages_BT))
    expected_BT = task.gradient_BT + 0.4 * teacher.gradient_BT
    torch.testing.assert_close(ours.gradient_BT, expected_BT, rtol=1e-9, atol=1e-12)
