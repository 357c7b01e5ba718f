"""Training on data teaches what holds beyond it: the loss on rows never trained on falls."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.trainer.types import TrainBatch, TrainRow
from tests.integration.trainer.learners import (
    Build,
    stepped,
    weights_of,
)
from tests.unit.trainer.builders import PAIR, VOCABULARY, data_row, make_plan, random_pairs
from trinity.algorithm.token_advantage.token_batch import IntVector

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
