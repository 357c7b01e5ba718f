"""Tokens that a policy loss treats apart, chosen before the batch is cut."""

import inspect
from collections.abc import Callable
from functools import partial

import numpy as np

from services.trainer.prepared import PreparedBatch
from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix
from trinity.algorithm.token_choice import TOKEN_CHOICES
from trinity.algorithm.token_choice.choice_batch import ChoiceBatch
from trinity.config.plan_parts import ResolvedAlgorithm

TokenChoice = Callable[[ChoiceBatch], BoolMatrix]


def token_choice(algorithm: ResolvedAlgorithm) -> TokenChoice | None:
    """The loss's, with those of its arguments that the choice takes; None for most losses."""
    if algorithm.policy_loss_fn not in TOKEN_CHOICES.names():
        return None
    choose = TOKEN_CHOICES.get(algorithm.policy_loss_fn)
    taken = inspect.signature(choose).parameters
    arguments = algorithm.policy_loss_fn_args
    return partial(choose, **{name: arguments[name] for name in arguments if name in taken})


def chosen_tokens(choose: TokenChoice, prepared: PreparedBatch, seed: int) -> BoolMatrix:
    """Of the whole batch, [B, T]; the same whenever this step of the experiment is trained."""
    return choose(
        ChoiceBatch(
            logprobs_BT=prepared.policy["logprobs"],
            old_logprobs_BT=prepared.old_logprobs_BT,
            advantages_BT=prepared.advantages_BT,
            mask_BT=prepared.mask_BT,
            lots_BT=_lots(prepared, seed),
        )
    )


def _lots(prepared: PreparedBatch, seed: int) -> FloatMatrix:
    """A row's are its own, wherever it stands and however long the others are."""
    step = prepared.batch.step
    lots = (
        np.random.default_rng((seed, step, row.position)).random(row.response_length)
        for row in prepared.rows
    )
    return prepared.layout.stack(lots, np.float64)
