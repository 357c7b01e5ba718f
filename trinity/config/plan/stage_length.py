"""Reads from a plan how long its stages are, and no more of it."""

from pydantic import BaseModel


class _Buffer(BaseModel):
    total_epochs: int = 1


class _Config(BaseModel):
    buffer: _Buffer = _Buffer()


class StageLength(BaseModel):
    """The numbers of steps of a stage; the data decide where one is None."""

    name: str
    total_train_steps: int | None = None
    total_explore_steps: int | None = None
    config: _Config = _Config()

    def is_longer_than(self, before: "StageLength") -> bool:
        """Returns true if it may have more steps than before."""
        train = _is_more(self.total_train_steps, before.total_train_steps)
        explore = _is_more(self.total_explore_steps, before.total_explore_steps)
        by_data = None in (self.total_train_steps, self.total_explore_steps)
        epochs = self.config.buffer.total_epochs, before.config.buffer.total_epochs
        return train or explore or (by_data and epochs[0] > epochs[1])


def _is_more(now: int | None, before: int | None) -> bool:
    if now is None or before is None:
        return now is not before
    return now > before


class ExperimentLengths(BaseModel):
    """The lengths of all stages of an experiment.

    after = ExperimentLengths.model_validate_json(plan_json)
    after.longer_than(before)    # frozenset({"rft"})
    """

    stages: tuple[StageLength, ...]

    def longer_than(self, before: "ExperimentLengths") -> frozenset[str]:
        """Returns the names of stages that may have more steps than before."""
        known = {stage.name: stage for stage in before.stages}
        return frozenset(
            stage.name
            for stage in self.stages
            if stage.name in known and stage.is_longer_than(known[stage.name])
        )
