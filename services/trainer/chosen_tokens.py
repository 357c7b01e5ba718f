"""Selects the tokens that a policy loss treats differently, before the batch is split."""

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
    """Returns the loss's token selection, with its arguments bound; None for most losses."""
    if algorithm.policy_loss_fn not in TOKEN_CHOICES.names():
        return None
    choose = TOKEN_CHOICES.get(algorithm.policy_loss_fn)
    taken = inspect.signature(choose).parameters
    arguments = algorithm.policy_loss_fn_args
    return partial(choose, **{name: arguments[name] for name in arguments if name in taken})


def chosen_tokens(choose: TokenChoice, prepared: PreparedBatch, seed: int) -> BoolMatrix:
    """Selects tokens of the whole batch, [B, T]; the same each time this step is trained."""
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
    """Draws uniform numbers per row that depend only on seed, step and position."""
    step = prepared.batch.step
    lots = (
        np.random.default_rng((seed, step, row.position)).random(row.response_length)
        for row in prepared.rows
    )
    return prepared.layout.stack(lots, np.float64)
