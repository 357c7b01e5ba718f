"""Trial call of an operator on a tiny batch: bad arguments are found before the run starts."""

import numpy as np

from trinity.algorithm.advantage.needs import needs_of
from trinity.algorithm.advantage.samples import Samples
from trinity.config.section import Args
from trinity.operators import OPERATORS
from trinity.operators.rollouts import Rollouts


def try_operator(name: str, args: Args) -> None:
    """Calls an operator once; one that reads texts is only asked for its needs.

    Raises: UserError when it does not take a value.
    """
    operator = OPERATORS.get(name)
    needs = needs_of(operator, args)
    if needs.content:
        return
    numbers = {key: np.ones(2) for key in needs.numbers}
    operator(Rollouts.of(Samples.of_groups([0.0, 1.0]), numbers=numbers), **args)
