"""KTO and DPO on rollouts, GFPO and GVPO, by runs and by samples, against slow loops."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.unit.algorithm.policy_loss.batches import outcome
from tests.unit.algorithm.token_advantage.batches import assert_close, random_batch
from tests.unit.config.builders import GRPO, stage
from trinity.algorithm.policy_loss.dpo import dpo
from trinity.algorithm.policy_loss.gpg import gpg
from trinity.algorithm.policy_loss.inputs import PolicyInputs
from trinity.algorithm.token_advantage.gfpo import gfpo
from trinity.algorithm.token_advantage.gvpo import gvpo
from trinity.algorithm.token_advantage.kto import kto
from trinity.algorithm.token_advantage.online_dpo import online_dpo
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch
from trinity.algorithm.units import UNITS, Unit
from trinity.config.plan.parts import ResolvedAlgorithm

SEEDS = range(4)
Unit_ = tuple[int, ...]
"""The rows of one unit."""


@pytest.fixture(params=SEEDS)
def batch(request: pytest.FixtureRequest) -> TokenBatch:
    """Runs of one to three rows in groups, some of which have a single run."""
    draw = np.random.default_rng(request.param)
    made = random_batch(request.param, num_rows=24, gaps=request.param % 2 == 1)
    sizes = draw.integers(1, 4, 24)
    runs_B = np.repeat(np.arange(24), sizes)[:24].astype(np.int64)
    groups_B = np.array([0, 0, 0, 1, 1, 1, 2, 2, 3] + [4] * 15, dtype=np.int64)[runs_B]
    return replace(made, runs_B=runs_B, groups_B=groups_B)


def groups_of(batch: TokenBatch, unit: Unit) -> list[list[Unit_]]:
    """The units of each group."""
    assert batch.runs_B is not None
    units: dict[int, list[int]] = {}
    for row, run in enumerate(batch.runs_B):
        units.setdefault(int(run) if unit == "run" else row, []).append(row)
    groups: dict[int, list[Unit_]] = {}
    for rows in units.values():
        groups.setdefault(int(batch.groups_B[rows[0]]), []).append(tuple(rows))
    return list(groups.values())


def score(batch: TokenBatch, rows: Unit_) -> float:
    return math.fsum(math.fsum(batch.rewards_BT[row]) for row in rows) / len(rows)


def num_tokens(batch: TokenBatch, rows: Unit_) -> int:
    return sum(int(batch.mask_BT[row].sum()) for row in rows)


def change(batch: TokenBatch, rows: Unit_, logprobs_BT: torch.Tensor, other: str) -> torch.Tensor:
    """The sum of log p less another policy's over a unit's tokens."""
    gaps_BT = logprobs_BT - torch.from_numpy(getattr(batch, other))
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        total = total + gaps_BT[row][torch.from_numpy(batch.mask_BT[row])].sum()
    return total


def gradient_of(loss: torch.Tensor, logprobs_BT: torch.Tensor) -> torch.Tensor:
    loss.backward()
    assert logprobs_BT.grad is not None
    return logprobs_BT.grad


def gradient_by(batch: TokenBatch, found: TokenAdvantages) -> torch.Tensor:
    """What `gpg` makes of the advantages, summed over tokens and averaged over rows."""
    mask_BT = batch.mask_BT if found.mask_BT is None else found.mask_BT
    inputs = PolicyInputs(
        logprobs_BT=torch.from_numpy(np.where(mask_BT, batch.logprobs_BT, 0.0)),
        old_logprobs_BT=torch.from_numpy(np.where(mask_BT, batch.rollout_logprobs_BT, 0.0)),
        advantages_BT=torch.from_numpy(found.advantages_BT),
        mask_BT=torch.from_numpy(mask_BT),
    )
    return outcome(gpg, inputs, "seq-mean-token-sum").gradient_BT


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("threshold", [None, 0.2])
def test_kto_has_the_gradient_of_its_loss(
    batch: TokenBatch, unit: Unit, threshold: float | None
) -> None:
    beta, good, bad = 0.3, 1.5, 0.5
    logprobs_BT = torch.from_numpy(batch.logprobs_BT).requires_grad_()
    groups = groups_of(batch, unit)
    changes = {
        rows: change(batch, rows, logprobs_BT, "reference_logprobs_BT")
        for group in groups
        for rows in group
    }
    shift = max(sum(float(value.detach()) for value in changes.values()) / len(changes), 0.0)
    total, kept = torch.zeros((), dtype=torch.float64), 0
    for group in groups:
        scores = [score(batch, rows) for rows in group]
        border = math.fsum(scores) / len(scores) if threshold is None else threshold
        for rows, value in zip(group, scores, strict=True):
            if threshold is None and len(group) == 1:
                continue
            kept += len(rows)
            if value > border:
                total = total + good * (1 - torch.sigmoid(beta * (changes[rows] - shift)))
            else:
                total = total + bad * (1 - torch.sigmoid(beta * (shift - changes[rows])))
    expected_BT = gradient_of(total / kept, logprobs_BT)
    found = kto(
        batch,
        beta=beta,
        threshold=threshold,
        desirable_weight=good,
        undesirable_weight=bad,
        unit=unit,
    )
    torch.testing.assert_close(gradient_by(batch, found), expected_BT, rtol=1e-9, atol=1e-12)
    assert found.metrics["kto/divergence"] == pytest.approx(shift)


def test_answers_that_are_all_alike_are_neither_good_nor_bad() -> None:
    """0.1 + 0.1 + 0.1 over 3 is more than 0.1."""
    made = random_batch(1, num_rows=3)
    rewards_BT = np.zeros(made.mask_BT.shape)
    rewards_BT[:, 0] = 0.1
    alike = replace(made, rewards_BT=rewards_BT, groups_B=np.zeros(3, np.int64))
    found = kto(alike)
    assert found.mask_BT is not None and not found.mask_BT.any()
    pairs = online_dpo(alike)
    assert pairs.mask_BT is not None and not pairs.mask_BT.any()
    judged = kto(alike, threshold=0.0)
    assert judged.mask_BT is not None and judged.mask_BT.any(-1).all()


def pair_of(batch: TokenBatch, group: Sequence[Unit_]) -> tuple[Unit_, Unit_] | None:
    ranked = sorted(group, key=lambda rows: score(batch, rows))
    return (ranked[-1], ranked[0]) if len(group) > 1 else None


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_online_dpo_has_the_gradient_of_dpo_on_the_best_and_the_worst_of_each_group(
    batch: TokenBatch, unit: Unit, smoothing: float
) -> None:
    beta = 0.4
    logprobs_BT = torch.from_numpy(batch.logprobs_BT).requires_grad_()
    pairs = [pair for group in groups_of(batch, unit) if (pair := pair_of(batch, group))]
    num_rows = sum(len(rows) for pair in pairs for rows in pair)
    total = torch.zeros((), dtype=torch.float64)
    for chosen, rejected in pairs:
        margin = beta * (
            change(batch, chosen, logprobs_BT, "reference_logprobs_BT")
            - change(batch, rejected, logprobs_BT, "reference_logprobs_BT")
        )
        log_sigmoid = torch.nn.functional.logsigmoid
        total = total - (1 - smoothing) * log_sigmoid(margin) - smoothing * log_sigmoid(-margin)
    expected_BT = gradient_of(2 * total / num_rows, logprobs_BT)
    found = online_dpo(batch, beta=beta, label_smoothing=smoothing, unit=unit)
    torch.testing.assert_close(gradient_by(batch, found), expected_BT, rtol=1e-9, atol=1e-12)
    assert found.metrics["online_dpo/num_pairs"] == len(pairs)


def test_online_dpo_of_single_rows_is_the_loss_dpo_on_rows_laid_out_in_pairs(
    batch: TokenBatch,
) -> None:
    found = online_dpo(batch, unit="sample")
    pairs = [pair for group in groups_of(batch, "sample") if (pair := pair_of(batch, group))]
    rows = [row for pair in pairs for (row,) in pair]
    mask_BT = batch.mask_BT[rows]
    assert batch.reference_logprobs_BT is not None
    inputs = PolicyInputs(
        logprobs_BT=torch.from_numpy(np.where(mask_BT, batch.logprobs_BT[rows], 0.0)),
        old_logprobs_BT=torch.zeros(mask_BT.shape, dtype=torch.float64),
        advantages_BT=torch.zeros(mask_BT.shape, dtype=torch.float64),
        mask_BT=torch.from_numpy(mask_BT),
        reference_logprobs_BT=torch.from_numpy(
            np.where(mask_BT, batch.reference_logprobs_BT[rows], 0.0)
        ),
    )
    expected_BT = outcome(dpo, inputs, "token-mean").gradient_BT
    gradient_BT = gradient_by(batch, found)
    torch.testing.assert_close(gradient_BT[rows], expected_BT, rtol=1e-9, atol=1e-12)
    others = sorted(set(range(len(batch.mask_BT))) - set(rows))
    assert not gradient_BT[others].any()


@pytest.mark.parametrize("unit", UNITS)
def test_gvpo_counts_units_and_the_whole_change_of_each(batch: TokenBatch, unit: Unit) -> None:
    beta = 0.3
    expected_BT = np.zeros(batch.mask_BT.shape)
    logprobs_BT = torch.from_numpy(batch.logprobs_BT)
    for group in groups_of(batch, unit):
        scores = [score(batch, rows) for rows in group]
        changes = [float(change(batch, rows, logprobs_BT, "rollout_logprobs_BT")) for rows in group]
        size = len(group)
        for rows, own, moved in zip(group, scores, changes, strict=True):
            target = own - math.fsum(scores) / size
            reached = beta * (moved - math.fsum(changes) / size)
            scale = beta * size / (size - 1) if size > 1 else 0.0
            for row in rows:
                expected_BT[row] = scale * (target - reached) * batch.mask_BT[row]
    assert_close(gvpo(batch, beta=beta, unit=unit).advantages_BT, expected_BT)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("num_kept", [1, 2, 5])
def test_gfpo_keeps_whole_units_by_their_length(
    batch: TokenBatch, unit: Unit, num_kept: int
) -> None:
    expected_BT, mask_BT = np.zeros(batch.mask_BT.shape), np.zeros_like(batch.mask_BT)
    for group in groups_of(batch, unit):
        lengths = {rows: num_tokens(batch, rows) for rows in group}
        border = sorted(lengths.values())[:num_kept][-1]
        kept = [rows for rows in group if lengths[rows] <= border]
        scores = [score(batch, rows) for rows in kept]
        mean = math.fsum(scores) / len(scores) if len(scores) > 1 else 0.0
        std = float(np.std(scores, ddof=1)) if len(scores) > 1 else 1.0
        for rows, own in zip(kept, scores, strict=True):
            for row in rows:
                mask_BT[row] = batch.mask_BT[row]
                expected_BT[row] = (own - mean) / (std + 1e-6) * batch.mask_BT[row]
    found = gfpo(batch, num_kept=num_kept, unit=unit)
    assert found.mask_BT is not None
    assert (found.mask_BT == mask_BT).all()
    assert_close(found.advantages_BT, expected_BT)


@pytest.mark.parametrize("function", [kto, online_dpo, gvpo, gfpo])
def test_rows_that_are_runs_of_their_own_are_the_same_in_both_units(function) -> None:  # type: ignore[no-untyped-def]
    made = random_batch(2)
    by_run, by_sample = function(made, unit="run"), function(made, unit="sample")
    np.testing.assert_array_equal(by_run.advantages_BT, by_sample.advantages_BT)


def algorithm_of(changes: Mapping[str, object]) -> ResolvedAlgorithm:
    return stage(GRPO, algorithm=changes).algorithm


@pytest.mark.parametrize("name", ["kto", "online_dpo"])
def test_the_reference_and_the_policys_own_log_probabilities_are_computed_for_them(
    name: str,
) -> None:
    own = algorithm_of({"algorithm_type": name})
    assert (own.needs_reference, own.needs_proximal, own.kl_loss_fn) == (True, True, "none")
    assert own.advantage_fn_args["unit"] == "run"
    assert not algorithm_of({"algorithm_type": "gvpo"}).needs_reference
