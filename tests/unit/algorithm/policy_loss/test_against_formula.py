"""Our losses against slow loops over tokens, in double precision: values and gradients."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import get_args

import pytest
import torch

from tests.support.oracle import losses as reference
from tests.unit.algorithm.policy_loss.batches import (
    AGES,
    MODES,
    Age,
    Loss,
    outcome,
    random_inputs,
    totals_of,
)
from tests.unit.subtests import as_subtests
from trinity.algorithm.aggregation import LossAggMode
from trinity.algorithm.policy_loss.cispo import cispo
from trinity.algorithm.policy_loss.dpo import dpo
from trinity.algorithm.policy_loss.gspo import gspo
from trinity.algorithm.policy_loss.importance_sampling import importance_sampling
from trinity.algorithm.policy_loss.inputs import PolicyInputs
from trinity.algorithm.policy_loss.mix import mix
from trinity.algorithm.policy_loss.mix_chord import expert_share, mix_chord
from trinity.algorithm.policy_loss.opmd import opmd
from trinity.algorithm.policy_loss.ppo import ppo
from trinity.algorithm.policy_loss.rec import ClipMode, Regularizer, Weight, rec
from trinity.algorithm.policy_loss.sapo import sapo
from trinity.algorithm.policy_loss.sft import sft
from trinity.algorithm.policy_loss.sft_is import sft_is
from trinity.algorithm.policy_loss.sft_phi import sft_phi
from trinity.algorithm.policy_loss.sppo import sppo
from trinity.algorithm.policy_loss.topr import topr

EXACT = 1e-9


@dataclass(frozen=True, slots=True)
class Pair:
    ours: Loss
    slow: reference.RowLoss
    modes: tuple[LossAggMode, ...] = MODES


PAIRS = {
    "ppo": Pair(ppo, reference.ppo),
    "ppo-masking": Pair(
        partial(ppo, enable_sequence_masking=True, delta_sequence_masking=0.05),
        partial(reference.ppo, delta=0.05),
    ),
    "ppo-fallback": Pair(
        partial(ppo, fallback_to_policy_gradient=True), partial(reference.ppo, fallback=True)
    ),
    "ppo-masking-fallback": Pair(
        partial(
            ppo,
            enable_sequence_masking=True,
            delta_sequence_masking=0.05,
            fallback_to_policy_gradient=True,
        ),
        partial(reference.ppo, delta=0.05, fallback=True),
    ),
    "gspo": Pair(
        partial(gspo, clip_range_low=0.02, clip_range_high=0.03),
        partial(reference.gspo, low=0.02, high=0.03),
    ),
    "cispo": Pair(cispo, partial(reference.cispo, low=1.0, high=0.28)),
    "cispo-masks": Pair(
        partial(cispo, enable_mask_clip=True, mask_clip_range_low=0.2, mask_clip_range_high=0.1),
        partial(reference.cispo, low=1.0, high=0.28, masks=(0.2, 0.1)),
    ),
    "sapo": Pair(sapo, partial(reference.sapo, positive=1.0, negative=1.05, detached=False)),
    "sapo-detached": Pair(
        partial(sapo, tau_pos=0.5, tau_neg=2.0, detach_gate=True),
        partial(reference.sapo, positive=0.5, negative=2.0, detached=True),
    ),
    "topr": Pair(partial(topr, advantage_threshold=0.3), partial(reference.topr, threshold=0.3)),
    "opmd": Pair(partial(opmd, tau=0.7), partial(reference.opmd, tau=0.7)),
    "sppo": Pair(sppo, partial(reference.sppo, epsilon=0.3)),
    "sft": Pair(sft, reference.sft),
    "sft_is": Pair(sft_is, reference.sft_is),
    "sft_phi": Pair(sft_phi, partial(reference.sft_phi, cutoff=1.0)),
    "sft_phi-cutoff": Pair(
        partial(sft_phi, cutoff_prob=0.4), partial(reference.sft_phi, cutoff=0.4)
    ),
    "importance_sampling": Pair(importance_sampling, reference.importance_sampling),
}
CLIP_MODES, WEIGHTS, REGULARIZERS = map(get_args, (ClipMode, Weight, Regularizer))


def rows_of(inputs: PolicyInputs, logprobs_BT: torch.Tensor) -> list[reference.Row]:
    rows = []
    for b in range(inputs.mask_BT.shape[0]):
        row = []
        for t in range(inputs.mask_BT.shape[1]):
            if not inputs.mask_BT[b, t]:
                continue
            assert inputs.reference_logprobs_BT is not None
            row.append(
                reference.Token(
                    lp=logprobs_BT[b, t],
                    old=reference.number(inputs.old_logprobs_BT[b, t]),
                    advantage=reference.number(inputs.advantages_BT[b, t]),
                    reference=reference.number(inputs.reference_logprobs_BT[b, t]),
                )
            )
        rows.append(row)
    return rows


def assert_is(
    ours: Loss,
    slow: Callable[[list[reference.Row]], torch.Tensor],
    inputs: PolicyInputs,
    mode: LossAggMode = "token-mean",
) -> None:
    found = outcome(ours, inputs, mode)
    logprobs_BT = inputs.logprobs_BT.clone().requires_grad_()
    expected = slow(rows_of(inputs, logprobs_BT))
    expected.backward()
    torch.testing.assert_close(found.loss, expected.detach(), rtol=EXACT, atol=EXACT)
    assert logprobs_BT.grad is not None
    torch.testing.assert_close(found.gradient_BT, logprobs_BT.grad, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("age", AGES)
@as_subtests("mode", MODES)
@as_subtests("name", PAIRS)
def test_loss_and_gradient_are_the_formulas(name: str, mode: LossAggMode, age: Age) -> None:
    pair, inputs = PAIRS[name], random_inputs(4, age)

    def slow(rows: list[reference.Row]) -> torch.Tensor:
        losses = [pair.slow(row) if row else [] for row in rows]
        return reference.aggregate(losses, mode, inputs.mask_BT.shape[1])

    assert_is(pair.ours, slow, inputs, mode)


@as_subtests("age", AGES)
@as_subtests(
    ("clip_mode", "weight", "regularizer"), list(product(CLIP_MODES, WEIGHTS, REGULARIZERS))
)
def test_rec_is_the_formula_in_all_its_variants(
    clip_mode: ClipMode, weight: Weight, regularizer: Regularizer, age: Age
) -> None:
    inputs = random_inputs(8, age)
    ours = partial(
        rec,
        clip_mode=clip_mode,
        weight=weight,
        regularizer=regularizer,
        regularizer_coef=0.05,
        temp=2.0,
    )
    formula = partial(
        reference.rec,
        clip_mode=clip_mode,
        weight=weight,
        regularizer=regularizer,
        coef=0.05,
        temp=2.0,
    )
    mode = "seq-mean-token-mean" if clip_mode == "gspo-one-side" else "token-mean"

    def slow(rows: list[reference.Row]) -> torch.Tensor:
        losses = [formula(row) if row else [] for row in rows]
        return reference.aggregate(losses, mode, inputs.mask_BT.shape[1])

    assert_is(ours, slow, inputs)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("seed", range(3))
def test_dpo_is_the_mean_over_pairs(seed: int, smoothing: float) -> None:
    inputs = random_inputs(seed, num_rows=4)

    def slow(rows: list[reference.Row]) -> torch.Tensor:
        pairs = zip(rows[::2], rows[1::2], strict=True)
        return reference.mean(
            [reference.dpo(*pair, beta=0.3, smoothing=smoothing) for pair in pairs]
        )

    assert_is(partial(dpo, beta=0.3, label_smoothing=smoothing), slow, inputs)


def test_dpos_figures_are_means_over_pairs() -> None:
    inputs = random_inputs(1, num_rows=4)
    assert inputs.reference_logprobs_BT is not None
    rewards_B = 0.1 * ((inputs.logprobs_BT - inputs.reference_logprobs_BT) * inputs.mask_BT).sum(-1)
    chosen_P, rejected_P = rewards_B[::2], rewards_B[1::2]
    figures = outcome(dpo, inputs).figures
    assert figures["chosen_reward"] == pytest.approx(chosen_P.mean().item())
    assert figures["rejected_reward"] == pytest.approx(rejected_P.mean().item())
    assert figures["accuracy_mean"] == (chosen_P > rejected_P).double().mean().item()


def mixture(
    inputs: PolicyInputs, mu: float, sft_loss: reference.RowLoss, modes: tuple[str, str]
) -> Callable[[list[reference.Row]], torch.Tensor]:
    """(1 - mu) PPO over usual rows + mu SFT over expert rows, each averaged among themselves."""
    assert inputs.is_expert_B is not None
    is_expert = inputs.is_expert_B.tolist()

    def slow(rows: list[reference.Row]) -> torch.Tensor:
        pairs = [(row, expert) for row, expert in zip(rows, is_expert, strict=True) if row]
        usual = [reference.ppo(row) for row, expert in pairs if not expert]
        expert = [sft_loss(row) for row, expert in pairs if expert]
        longest = inputs.mask_BT.shape[1]
        return (1 - mu) * reference.aggregate(usual, modes[0], longest) + mu * reference.aggregate(
            expert, modes[1], longest
        )

    return slow


@as_subtests(("mode", "sft_mode"), list(product(MODES, MODES)))
def test_mix_averages_rollouts_and_expert_rows_among_themselves(
    mode: LossAggMode, sft_mode: LossAggMode
) -> None:
    inputs = random_inputs(3, with_experts=True)
    slow = mixture(inputs, 0.3, reference.sft, (mode, sft_mode))
    assert_is(partial(mix, mu=0.3, sft_loss_agg_mode=sft_mode), slow, inputs, mode)


@pytest.mark.parametrize("phi", [True, False])
def test_chord_is_mix_with_a_schedule_and_phi(phi: bool) -> None:
    inputs = replace(random_inputs(6, with_experts=True), step=3)
    sft_loss = partial(reference.sft_phi, cutoff=1.0) if phi else reference.sft
    slow = mixture(inputs, 0.5 * 3 / 6, sft_loss, ("token-mean", "token-mean"))
    chord = partial(mix_chord, mu_warmup_steps=6, mu_peak=0.5, enable_phi_function=phi)
    assert_is(chord, slow, inputs)


def test_mix_without_expert_rows_is_the_usual_share_of_ppo() -> None:
    inputs = random_inputs(5)
    assert_is(partial(mix, mu=0.25), lambda rows: 0.75 * _ppo_mean(rows), inputs)


def _ppo_mean(rows: list[reference.Row]) -> torch.Tensor:
    return reference.aggregate([reference.ppo(row) for row in rows if row], "token-mean", 1)


def test_mix_reports_each_kind_by_itself() -> None:
    inputs = random_inputs(3, with_experts=True)
    assert inputs.is_expert_B is not None
    expert_BT = inputs.mask_BT & inputs.is_expert_B[:, None]
    figures = outcome(partial(mix_chord, mu_peak=0.2, mu_valley=0.2), inputs).figures
    alone = replace(inputs, mask_BT=inputs.mask_BT & ~expert_BT, is_expert_B=None)
    usual = outcome(ppo, alone)
    assert figures["usual/pg_loss"] == pytest.approx(usual.loss.item())
    assert figures["usual/ppo_kl"] == pytest.approx(usual.figures["ppo_kl"])
    probs = inputs.logprobs_BT[expert_BT].exp()
    sft = (-inputs.logprobs_BT[expert_BT] * probs * (1 - probs)).mean().item()
    assert figures["expert/sft_phi_loss"] == pytest.approx(sft)
    assert figures["mu"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("step", "expected"), [(1, 0.1), (4, 0.4), (5, 0.5), (10, 0.3), (15, 0.1), (99, 0.1)]
)
def test_the_experts_share_rises_to_its_peak_and_falls_to_its_valley(
    step: int, expected: float
) -> None:
    found = expert_share(step, warmup=5, decay=10, peak=0.5, valley=0.1)
    assert found == pytest.approx(expected)


def test_without_a_schedule_the_experts_share_is_the_valley() -> None:
    assert expert_share(1, warmup=0, decay=0, peak=0.9, valley=0.1) == 0.1


def test_sequence_masking_reports_what_it_leaves_out() -> None:
    inputs = random_inputs(4)
    masked = partial(ppo, enable_sequence_masking=True, delta_sequence_masking=0.05)
    figures = outcome(masked, inputs).figures
    rows = [row for row in rows_of(inputs, inputs.logprobs_BT) if row]
    means = [-reference.number(reference.mean_log_ratio(row)) for row in rows]
    left_out = sum(
        token.advantage < 0
        for row, mean in zip(rows, means, strict=True)
        if mean > 0.05
        for token in row
    )
    assert left_out > 0
    assert figures["seq_mask/masked_tokens"] == pytest.approx(
        left_out / totals_of(inputs).num_tokens
    )
    assert figures["seq_mask/mean_sequence_kl"] == pytest.approx(sum(means) / len(means))
