"""What the runs of an experiment are called in a monitor."""

import hashlib
from dataclasses import dataclass
from typing import Self

from trinity.config.plan import ExperimentPlan
from trinity.monitors.points import Series

ID_LENGTH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNames:
    """Two runs an experiment, `<name>_explorer` and `<name>_trainer`; a pair for each stage where
    there are several, as each counts its steps from 1: `<name>/<stage>_trainer`.
    """

    project: str
    group: str
    """Puts an experiment's runs together."""
    name: str
    experiment_id: str
    has_stages: bool

    @classmethod
    def of(cls, plan: ExperimentPlan, experiment_id: str) -> Self:
        """The plan's project, group and name; a trial or a new beginning has a name of its own."""
        config, name = plan.stages[0].config, plan.job_path.name
        return cls(
            project=config.project,
            group=config.group or name,
            name=name,
            experiment_id=experiment_id,
            has_stages=len(plan.stages) > 1,
        )

    def name_of(self, series: Series) -> str:
        """As a person reads it."""
        stage = f"/{series.stage}" if self.has_stages else ""
        return f"{self.name}{stage}_{series.role}"

    def id_of(self, series: Series) -> str:
        """The same whenever the experiment goes on, another for each other experiment."""
        text = f"{self.experiment_id}/{series.stage}/{series.role}"
        return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]
