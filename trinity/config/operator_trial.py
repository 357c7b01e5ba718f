"""An operator called once on next to nothing: what it says against its arguments is said early."""

import numpy as np

from trinity.algorithm.advantage.needs import needs_of
from trinity.algorithm.advantage.samples import Samples
from trinity.config.section import Args
from trinity.operators import OPERATORS
from trinity.operators.rollouts import Rollouts


def try_operator(name: str, args: Args) -> None:
    """What samples say is not made up: an operator that reads it is asked for its needs alone.

    Raises: UserError when it does not take a value.
    """
    operator = OPERATORS.get(name)
    needs = needs_of(operator, args)
    if needs.content:
        return
    numbers = {key: np.ones(2) for key in needs.numbers}
    operator(Rollouts.of(Samples.of_groups([0.0, 1.0]), numbers=numbers), **args)
