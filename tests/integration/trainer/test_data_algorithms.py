"""Training on data teaches what holds beyond it: the loss on rows never trained on falls."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.trainer.batch_rows import with_mismatched
from services.trainer.types import TrainBatch, TrainRow
from tests.integration.trainer.learners import (
    Build,
    assert_close,
    gradients_of,
    stepped,
    weights_of,
)
from tests.unit.trainer.builders import PAIR, VOCABULARY, data_row, make_plan, random_pairs
from trinity.algorithm.token_advantage.token_batch import IntVector
from trinity.config.plan.stage_plan import StagePlan

NUM_STEPS = 40
HELD_OUT_SEED = 1000
MakeRows = Callable[[int, np.random.Generator], list[TrainRow]]


def successors(generator: np.random.Generator, length: int) -> IntVector:
    """Each token is the one before plus one: the rule to be learned."""
    tokens: IntVector = (int(generator.integers(46)) + np.arange(length)) % 46 + 2
    return tokens


def imitation(position: int, generator: np.random.Generator) -> list[TrainRow]:
    tokens = successors(generator, 8)
    return [data_row(position, tokens[:4], tokens[4:])]


def text(position: int, generator: np.random.Generator) -> list[TrainRow]:
    tokens = successors(generator, 10)
    return [data_row(position, tokens[:1], tokens[1:])]


def preference(position: int, generator: np.random.Generator) -> list[TrainRow]:
    """The better answer follows the rule, the worse one goes anywhere."""
    tokens = successors(generator, 8)
    answers = (tokens[4:], generator.integers(2, VOCABULARY, 3))
    return [
        data_row(position, tokens[:4], answer, side)
        for side, answer in zip(PAIR, answers, strict=True)
    ]


def batch_of(make: MakeRows, step: int, num: int = 16) -> TrainBatch:
    generator = np.random.default_rng(step)
    rows = [row for position in range(num) for row in make(position, generator)]
    return TrainBatch(step=step, rows=rows, metrics={}, replayed=False)


@pytest.mark.parametrize(
    ("algorithm_type", "make", "name"),
    [
        ("sft", imitation, "actor/sft_loss"),
        ("cpt", text, "actor/sft_loss"),
        ("dpo", preference, "actor/dpo_loss"),
        ("orpo", preference, "actor/orpo_loss"),
    ],
)
def test_the_loss_on_held_out_rows_falls(
    learner_of: Build, model: Path, algorithm_type: str, make: MakeRows, name: str
) -> None:
    learner = learner_of(make_plan(model, {"algorithm_type": algorithm_type}))
    held_out = batch_of(make, HELD_OUT_SEED, num=64)
    before = stepped(learner, held_out, 0.0)[name]
    for step in range(1, NUM_STEPS + 1):
        stepped(learner, batch_of(make, step), 3e-3)
    assert stepped(learner, held_out, 0.0)[name] < 0.7 * before


def labelled(seed: int, num: int = 16) -> TrainBatch:
    """Good answers follow the rule and bad ones do not, each with its mismatched row."""
    generator = np.random.default_rng(seed)
    rows = []
    for position in range(num):
        chosen, rejected = preference(position, generator)
        row = chosen if position % 2 else rejected
        sign = np.float32(1 if position % 2 else -1)
        rows.append(replace(row, side=None, advantages=row.advantages + sign))
    return TrainBatch(step=seed, rows=with_mismatched(rows, 128), metrics={}, replayed=False)


def kto_plan(model: Path, **trainer: object) -> StagePlan:
    return make_plan(model, {"algorithm_type": "kto"}, trainer, has_rows=True)


def test_kto_learns_from_labels(learner_of: Build, model: Path) -> None:
    learner = learner_of(kto_plan(model))
    held_out = labelled(HELD_OUT_SEED, num=64)
    before = stepped(learner, held_out, 0.0)
    assert before["actor/kto_loss"] == pytest.approx(0.5)
    assert before["actor/kto_divergence"] == 0.0
    for step in range(1, NUM_STEPS + 1):
        stepped(learner, labelled(step), 3e-3)
    after = stepped(learner, held_out, 0.0)
    assert after["actor/kto_loss"] < 0.35
    assert after["actor/accuracy_mean"] > 0.9


def test_the_reference_point_of_kto_follows_the_policy_within_a_step(
    learner_of: Build, model: Path
) -> None:
    """Before the first update it is 0, as the policy is the reference; later ones measure it."""
    good = labelled(3)
    rows = [
        replace(row, advantages=np.abs(row.advantages)) if row.side == "chosen" else row
        for row in good.rows
    ]
    batch = replace(good, rows=rows)

    def shift(passes: int) -> float:
        plan = kto_plan(model, ppo_epochs=passes)
        return stepped(learner_of(plan), batch, 3e-3)["actor/kto_divergence"]

    assert shift(1) == 0.0
    assert shift(4) > 0.0


@pytest.mark.parametrize("max_tokens", [150, 64])
def test_a_step_of_kto_is_the_same_in_one_call_or_in_several(
    learner_of: Build, model: Path, max_tokens: int
) -> None:
    whole, parts = (
        gradients_of(
            learner_of(kto_plan(model, max_token_len_per_gpu=n)),
            labelled(5),
        )
        for n in (8192, max_tokens)
    )
    assert_close(whole, parts)


def cut_to_prompt(row: TrainRow) -> TrainRow:
    return replace(
        row,
        tokens=row.tokens[: row.prompt_length],
        mask=row.mask[:0],
        rollout_logprobs=row.rollout_logprobs[:0],
        advantages=row.advantages[:0],
    )


def test_when_all_pairs_are_cut_down_to_their_prompts_the_step_teaches_nothing(
    learner_of: Build, model: Path
) -> None:
    pairs = random_pairs(3, seed=3)
    empty = replace(pairs, rows=[cut_to_prompt(row) for row in pairs.rows])
    metrics = stepped(learner_of(make_plan(model, {"algorithm_type": "dpo"})), empty)
    assert (metrics["actor/loss"], metrics["actor/grad_norm"]) == (0.0, 0.0)


def test_a_pair_cut_down_to_its_prompt_changes_no_direction(learner_of: Build, model: Path) -> None:
    """It is in no micro-batch, and no mean counts it."""
    plan = make_plan(model, {"algorithm_type": "dpo"})
    pairs = random_pairs(4, seed=3)
    cut = [replace(cut_to_prompt(row), position=9) for row in random_pairs(1, seed=4).rows]
    left, right = learner_of(plan), learner_of(plan)
    with_cut = stepped(left, replace(pairs, rows=[*pairs.rows, *cut]))
    assert with_cut["actor/dpo_loss"] == stepped(right, pairs)["actor/dpo_loss"]
    for name, array in weights_of(left).items():
        assert np.array_equal(weights_of(right)[name], array)


def test_training_data_is_reported_without_what_rollouts_have(
    learner_of: Build, model: Path
) -> None:
    outcome = learner_of(make_plan(model, {"algorithm_type": "sft"})).train_step(
        batch_of(imitation, 1), 1e-3
    )
    assert outcome.rows == {}
    assert not [name for name in outcome.metrics if name.startswith(("off_policy", "critic"))]
