"""What a choice looks at, from what a loss looks at or at random."""

import inspect

import numpy as np

from tests.unit.algorithm.policy_loss.batches import Age, random_inputs
from trinity.algorithm.policy_loss.inputs import PolicyInputs
from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix
from trinity.algorithm.token_selection import TOKEN_SELECTIONS
from trinity.algorithm.token_selection.selection_batch import SelectionBatch


def choice_of(
    name: str, inputs: PolicyInputs, lots_BT: FloatMatrix, **arguments: float
) -> BoolMatrix | FloatMatrix:
    choose = TOKEN_SELECTIONS.get(name)
    taken = inspect.signature(choose).parameters
    given = {key: value for key, value in arguments.items() if key in taken}
    chosen_BT: BoolMatrix | FloatMatrix = choose(batch_of(inputs, lots_BT), **given)
    return chosen_BT


def batch_of(inputs: PolicyInputs, lots_BT: FloatMatrix) -> SelectionBatch:
    return SelectionBatch(
        logprobs_BT=inputs.logprobs_BT.double().numpy(),
        old_logprobs_BT=inputs.old_logprobs_BT.double().numpy(),
        advantages_BT=inputs.advantages_BT.double().numpy(),
        mask_BT=inputs.mask_BT.numpy(),
        lots_BT=lots_BT,
        reference_logprobs_BT=inputs.logprobs_BT.double().numpy() - lots_BT + 0.4,
    )


def random_choice_batch(seed: int, age: Age = "stale", num_rows: int = 12) -> SelectionBatch:
    inputs = random_inputs(seed, age, num_rows=num_rows, num_tokens=17)
    lots_BT = np.random.default_rng(seed).random(tuple(inputs.mask_BT.shape))
    return batch_of(inputs, lots_BT)
