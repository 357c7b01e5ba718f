"""What verl does not have gives what a slow and obvious reference gives."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.unit.algorithm.token_advantage.batches import (
    assert_close,
    random_batch,
    with_outcome_rewards,
)
from tests.unit.subtests import as_subtests
from trinity.algorithm.token_advantage import TOKEN_ADVANTAGES
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch
from trinity.errors import UserError

SEEDS = range(6)
GAMMA, LAM = 0.97, 0.9


@pytest.fixture(params=SEEDS)
def batch(request: pytest.FixtureRequest) -> TokenBatch:
    return random_batch(request.param, gaps=request.param % 2 == 1, largest_gap=3.0)


def run(name: str, batch: TokenBatch, **args: object) -> TokenAdvantages:
    return TOKEN_ADVANTAGES.get(name)(batch, **args)


def tokens(batch: TokenBatch) -> Iterator[tuple[int, int]]:
    """Row and place of every token of the mask."""
    for row, place in np.argwhere(batch.mask_BT):
        yield int(row), int(place)


def whitened(values: dict[tuple[int, int], float], batch: TokenBatch) -> np.ndarray:
    mean = math.fsum(values.values()) / len(values)
    variance = math.fsum((x - mean) ** 2 for x in values.values()) / (len(values) - 1)
    out = np.zeros(batch.mask_BT.shape)
    for at, value in values.items():
        out[at] = (value - mean) / math.sqrt(variance + 1e-8)
    return out


def by_group(batch: TokenBatch) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = defaultdict(list)
    for row, group in enumerate(batch.groups_B):
        groups[int(group)].append(row)
    return groups


def of_rows(batch: TokenBatch, score: Callable[[float, list[float]], float]) -> np.ndarray:
    """`score(own, all of the group)` at every token of the mask."""
    scores = [math.fsum(row) for row in batch.rewards_BT]
    out = np.zeros(batch.mask_BT.shape)
    for rows in by_group(batch).values():
        for row in rows:
            out[row] = score(scores[row], [scores[other] for other in rows])
    return out * batch.mask_BT


def test_unmasked_ppo_runs_over_every_response_token(batch: TokenBatch) -> None:
    assert batch.values_BT is not None
    advantages: dict[tuple[int, int], float] = {}
    for row, length in enumerate(batch.lengths_B):
        later = next_value = 0.0
        for place in reversed(range(length)):
            value = batch.values_BT[row, place]
            delta = batch.rewards_BT[row, place] + GAMMA * next_value - value
            later, next_value = delta + GAMMA * LAM * later, value
            advantages[row, place] = later
    trained = {at: advantages[at] for at in tokens(batch)}
    result = run("ppo_unmasked", batch, gamma=GAMMA, lam=LAM)
    assert_close(result.advantages_BT, whitened(trained, batch), 1e-7)
    assert result.returns_BT is not None
    for at, advantage in trained.items():
        assert result.returns_BT[at] == pytest.approx(advantage + batch.values_BT[at], abs=1e-9)


def test_unmasked_reinforce_plus_plus_discounts_at_every_response_token(batch: TokenBatch) -> None:
    returns: dict[tuple[int, int], float] = {}
    for row in range(len(batch.lengths_B)):
        later = 0.0
        for place in reversed(range(batch.mask_BT.shape[1])):
            later = batch.rewards_BT[row, place] + GAMMA * later
            returns[row, place] = later
    trained = {at: returns[at] for at in tokens(batch)}
    result = run("reinforceplusplus_unmasked", batch, gamma=GAMMA)
    assert_close(result.advantages_BT, whitened(trained, batch), 1e-7)


def test_the_unmasked_names_differ_only_where_the_mask_has_gaps() -> None:
    whole, gappy = random_batch(1, gaps=False), random_batch(1, gaps=True)
    for name in ("ppo", "reinforceplusplus"):
        args = {"gamma": GAMMA}
        same = run(name, whole, **args).advantages_BT, run(f"{name}_unmasked", whole, **args)
        assert_close(same[1].advantages_BT, same[0])
        other = run(f"{name}_unmasked", gappy, **args).advantages_BT
        assert np.abs(run(name, gappy, **args).advantages_BT - other).max() > 0.01


def test_opmd_takes_the_mean_or_the_soft_maximum_off(batch: TokenBatch) -> None:
    def mean(own: float, all_of_group: list[float]) -> float:
        return own - (sum(all_of_group) / len(all_of_group) if len(all_of_group) > 1 else 0.0)

    def soft(own: float, all_of_group: list[float]) -> float:
        total = sum(math.exp(score / 0.7) for score in all_of_group)
        return own - (0.7 * math.log(total / len(all_of_group)) if len(all_of_group) > 1 else 0.0)

    assert_close(run("opmd_verl", batch).advantages_BT, of_rows(batch, mean))
    result = run("opmd_verl", batch, opmd_baseline="logavgexp", tau=0.7)
    assert_close(result.advantages_BT, of_rows(batch, soft))


def test_asymre_shifts_the_mean_but_not_for_a_row_alone(batch: TokenBatch) -> None:
    def expected(own: float, all_of_group: list[float]) -> float:
        mean = sum(all_of_group) / len(all_of_group)
        return own - (mean - 0.3) if len(all_of_group) > 1 else own

    result = run("asymre_verl", batch, baseline_shift=-0.3)
    assert_close(result.advantages_BT, of_rows(batch, expected))


def test_on_policy_distillation_pulls_towards_the_teacher(batch: TokenBatch) -> None:
    assert batch.teacher_logprobs_BT is not None
    result = run("on_policy_distill", batch, kl_coef=0.5)
    expected = np.zeros(batch.mask_BT.shape)
    for at in tokens(batch):
        expected[at] = 0.5 * (batch.teacher_logprobs_BT[at] - batch.logprobs_BT[at])
    assert_close(result.advantages_BT, expected)
    assert result.metrics["kl/mean"] == pytest.approx(-2 * expected.sum(-1).mean())
    assert result.metrics["kl/std"] == pytest.approx(2 * expected.sum(-1).std(ddof=1))
    assert result.metrics["advantages/mean"] == pytest.approx(expected.sum(-1).mean())


def test_the_teachers_pull_is_clipped_on_both_sides(batch: TokenBatch) -> None:
    free = run("on_policy_distill", batch).advantages_BT
    most = float(np.abs(free).max()) / 2
    clipped = run("on_policy_distill", batch, kl_coef=2.0, max_gap=most).advantages_BT
    assert_close(clipped, 2.0 * np.clip(free, -most, most))
    assert np.abs(clipped).max() < 2.0 * np.abs(free).max()
    with pytest.raises(UserError, match="`max_gap`"):
        run("on_policy_distill", batch, max_gap=0.0)


@as_subtests("weight", [0.0, 0.3, 0.5, 1.0])
@as_subtests("chunk_size", [None, 7])
def test_jsd_is_minus_the_per_token_score(
    batch: TokenBatch, weight: float, chunk_size: int | None
) -> None:
    assert batch.teacher_logprobs_BT is not None
    expected = np.zeros(batch.mask_BT.shape)
    for at in tokens(batch):
        teacher, student = batch.teacher_logprobs_BT[at] / 1.5, batch.logprobs_BT[at] / 1.5
        mixture = math.log(weight * math.exp(teacher) + (1 - weight) * math.exp(student))
        score = weight * (teacher - mixture) + (1 - weight) * (student - mixture)
        expected[at] = -2.0 * {0.0: student - teacher, 1.0: teacher - student}.get(weight, score)
    args = {"lambda_coef": weight, "kl_coef": 2.0, "temperature": 1.5, "chunk_size": chunk_size}
    assert_close(run("jsd", batch, **args).advantages_BT, expected)


def test_jsd_encourages_every_token_and_jensen_shannon_does_not(batch: TokenBatch) -> None:
    mask = batch.mask_BT
    assert (run("jsd", batch).advantages_BT[mask] >= 0).all()
    pulled = run("jensen_shannon", batch).advantages_BT[mask]
    assert batch.teacher_logprobs_BT is not None
    liked = (batch.teacher_logprobs_BT > batch.logprobs_BT)[mask]
    assert ((pulled > 0) == liked).all()


def grpo(batch: TokenBatch) -> np.ndarray:
    def expected(own: float, all_of_group: list[float]) -> float:
        if len(all_of_group) == 1:
            return own / (1 + 1e-6)
        return (own - float(np.mean(all_of_group))) / (float(np.std(all_of_group, ddof=1)) + 1e-6)

    return of_rows(batch, expected)


def entropy_scores(batch: TokenBatch, logprobs_BT: np.ndarray) -> dict[tuple[int, int], float]:
    assert batch.entropies_BT is not None
    return {
        at: math.exp(logprobs_BT[at]) * (batch.entropies_BT[at] + logprobs_BT[at])
        for at in tokens(batch)
    }


def test_clipb_leaves_out_discouraged_tokens_that_hold_the_entropy_up(batch: TokenBatch) -> None:
    advantages, scores = grpo(batch), entropy_scores(batch, batch.rollout_logprobs_BT)
    mean, std = np.mean(list(scores.values())), np.std(list(scores.values()))
    kept = np.zeros_like(batch.mask_BT)
    for at, score in scores.items():
        kept[at] = advantages[at] >= 0 or score - mean >= -0.5 * std
    result = run("clipb", batch, mu=0.5)
    assert result.mask_BT is not None
    assert (result.mask_BT == kept).all()
    assert 0 < kept.sum() < batch.mask_BT.sum()
    assert_close(result.advantages_BT, advantages * kept)
    num_negative = ((advantages < 0) & batch.mask_BT).sum()
    num_dropped = batch.mask_BT.sum() - kept.sum()
    assert dict(result.metrics) == pytest.approx(
        {
            "frac_clipped": num_dropped / batch.mask_BT.sum(),
            "frac_clipped_pos": 0.0,
            "frac_clipped_neg": num_dropped / num_negative,
            "ES": mean,
            "varS": std**2,
        }
    )


@pytest.mark.parametrize("max_frac", [1.0, 0.05, 1e-6])
def test_clipv_leaves_out_the_worst_tokens_up_to_a_share(
    batch: TokenBatch, max_frac: float
) -> None:
    assert batch.discriminator_BT is not None
    advantages, scores = grpo(batch), entropy_scores(batch, batch.logprobs_BT)
    excess = {at: batch.discriminator_BT[at] - score for at, score in scores.items()}
    std = np.std(list(excess.values()))
    wanted = [at for at in excess if advantages[at] < 0 and excess[at] > 0.4 * std]
    most = max(int(max_frac * len(excess)), 1)
    dropped = sorted(wanted, key=lambda at: -excess[at])[:most]
    result = run("clipv", batch, mu=0.4, max_frac=max_frac)
    assert result.mask_BT is not None
    assert set(map(tuple, np.argwhere(batch.mask_BT & ~result.mask_BT))) == set(dropped)
    assert len(dropped) > 0
    for at in dropped:
        advantages[at] = 0.0
    assert_close(result.advantages_BT, advantages)
    assert result.metrics["stdD"] == pytest.approx(std)
    assert result.metrics["frac_clipped"] == pytest.approx(len(dropped) / len(excess))


def test_clipping_by_entropy_keeps_everything_where_all_tokens_are_alike() -> None:
    batch = with_outcome_rewards(random_batch(0))
    alike = np.zeros(batch.mask_BT.shape)
    for name in ("clipb", "clipv"):
        flat = TokenBatch(
            rewards_BT=batch.rewards_BT,
            mask_BT=batch.mask_BT,
            lengths_B=batch.lengths_B,
            groups_B=batch.groups_B,
            logprobs_BT=alike - 1,
            rollout_logprobs_BT=alike - 1,
            entropies_BT=alike + 1,
            discriminator_BT=alike,
        )
        result = run(name, flat)
        assert result.mask_BT is not None
        assert (result.mask_BT == batch.mask_BT).all()


def test_a_reward_at_the_last_trained_token_reaches_all_before_it_whatever_tools_say() -> None:
    batch = with_outcome_rewards(random_batch(5, gaps=True))
    scores_B = batch.scores_B
    returns_BT = run("reinforceplusplus", batch).returns_BT
    assert returns_BT is not None
    assert_close(returns_BT, scores_B[:, None] * batch.mask_BT)


def test_sixteen_thousand_tokens_agree_with_one_step_at_a_time() -> None:
    num_tokens = 16_384
    batch = random_batch(2, num_rows=3, num_tokens=num_tokens)
    assert batch.values_BT is not None
    expected = np.zeros(batch.mask_BT.shape)
    later, next_value = np.zeros(3), np.zeros(3)
    for place in reversed(range(num_tokens)):
        on, value = batch.mask_BT[:, place], batch.values_BT[:, place]
        delta = batch.rewards_BT[:, place] + 0.999 * next_value - value
        later = np.where(on, delta + 0.999 * 0.95 * later, later)
        next_value = np.where(on, value, next_value)
        expected[:, place] = np.where(on, later + value, 0.0)
    returns_BT = run("ppo", batch, gamma=0.999, lam=0.95).returns_BT
    assert returns_BT is not None
    assert_close(returns_BT, expected)
