"""Trial calls of advantages and operators on tiny batches, before a run starts."""

from collections import defaultdict

import numpy as np

from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.advantage.needs import needs_of
from trinity.algorithm.advantage.samples import Samples
from trinity.algorithm.token_advantage import TOKEN_ADVANTAGES
from trinity.algorithm.token_advantage.token_batch import TokenBatch
from trinity.config.plan.parts import ResolvedAlgorithm
from trinity.config.schema.base import Args
from trinity.operators import OPERATORS
from trinity.operators.rollouts import Rollouts


def probe_advantage(algorithm: ResolvedAlgorithm) -> None:
    """Calls a built-in advantage once; a user's own is not called, as it may do more than compute.

    Raises: UserError when it does not take a value.
    """
    name, arguments = algorithm.advantage_fn, algorithm.advantage_fn_args
    if name in ADVANTAGES.builtins:
        ADVANTAGES.get(name)(Samples.of_groups([0.0, 1.0]), **arguments)
    elif name in TOKEN_ADVANTAGES.builtins:
        TOKEN_ADVANTAGES.get(name)(_two_tokens(), **arguments)


def _two_tokens() -> TokenBatch:
    """A batch of two rollouts of one task, a token each, with every column filled in."""
    zeros_BT = np.zeros((2, 1))
    return TokenBatch(
        rewards_BT=np.array([[0.0], [1.0]]),
        mask_BT=np.ones((2, 1), dtype=np.bool_),
        lengths_B=np.ones(2, dtype=np.int64),
        groups_B=np.zeros(2, dtype=np.int64),
        logprobs_BT=zeros_BT,
        rollout_logprobs_BT=zeros_BT,
        values_BT=zeros_BT,
        entropies_BT=zeros_BT,
        collision_BT=zeros_BT + 1.0,
        discriminator_BT=zeros_BT,
        teacher_logprobs_BT=zeros_BT,
        reference_logprobs_BT=zeros_BT,
        baselines_B=np.zeros(2),
        reward_parts=defaultdict(lambda: np.array([0.0, 1.0]), reward=np.array([0.0, 1.0])),
    )


def probe_operator(name: str, args: Args) -> None:
    """Calls an operator once; one that reads texts is only asked for its needs.

    Raises: UserError when it does not take a value.
    """
    operator = OPERATORS.get(name)
    needs = needs_of(operator, args)
    if needs.content:
        return
    numbers = {key: np.ones(2) for key in needs.numbers}
    operator(Rollouts.of(Samples.of_groups([0.0, 1.0]), numbers=numbers), **args)
