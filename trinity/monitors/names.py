"""Names and ids of an experiment's runs in a monitor."""

import hashlib
from dataclasses import dataclass
from typing import Self

from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.monitors.points import Series

ID_LENGTH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNames:
    """Names two runs per experiment, `<name>_explorer` and `<name>_trainer`.

    With several stages there is a pair for each, as each counts its steps from 1:
    `<name>/<stage>_trainer`.
    """

    project: str
    group: str
    """Groups an experiment's runs."""
    name: str
    experiment_id: str
    has_stages: bool

    @classmethod
    def of(cls, plan: ExperimentPlan, experiment_id: str) -> Self:
        """Takes project, group and name from the plan; a trial or fresh start has its own name."""
        config, name = plan.stages[0].config, plan.job_path.name
        return cls(
            project=config.project,
            group=config.group or name,
            name=name,
            experiment_id=experiment_id,
            has_stages=len(plan.stages) > 1,
        )

    def name_of(self, series: Series) -> str:
        """Returns the name that people read."""
        stage = f"/{series.stage}" if self.has_stages else ""
        return f"{self.name}{stage}_{series.role}"

    def id_of(self, series: Series) -> str:
        """Returns an id that stays when the experiment resumes, and is unique to it."""
        text = f"{self.experiment_id}/{series.stage}/{series.role}"
        return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]
