"""Arguments of the selector `difficulty_based`, given in its `kwargs`."""

from typing import Annotated

from pydantic import Field

from trinity.config.section import Section

Share = Annotated[float, Field(ge=0, le=1)]


class DifficultyConfig(Section):
    """Parameters that turn pass rates into beliefs about tasks, and beliefs into a choice.

    A belief is a Beta distribution, which starts as Beta(1, 1).
    """

    m: float = Field(default=16.0, gt=0)
    """Weight of one pass rate, in runs."""
    lamb: Share = 0.2
    """How much of a belief is forgotten with each explore step."""
    rho: Share = 0.2
    """Share of a pass rate's weight that goes to the rate predicted from the anchors, which all
    tasks get, rolled out or not; the rest goes to the rate that was seen."""
    target_reward: Share = 1.0
    """The pass rate of the tasks that are wanted most."""
    tau: float = Field(default=1.0, ge=0)
    """Temperature of the choice; at 0 the nearest to the target are taken."""
    do_sample: bool = False
    """Whether a task's pass rate is drawn from its belief; else it is the belief's mean."""
    adaptive_rho: bool = False
    """Whether `rho` halves each time the predictions are off by a quarter or more on average."""
