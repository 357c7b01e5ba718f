"""The interface of a monitor, and the names of an experiment's runs in it."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.schema.base import Args, redact_secrets
from trinity.run.monitors.points import MetricPoint, MonitorRun
from trinity.runtime.json_values import JsonValue

ID_LENGTH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorRunNames:
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
    def from_plan(cls, plan: ExperimentPlan, experiment_id: str) -> Self:
        """Takes project, group and name from the plan; a trial or fresh start has its own name."""
        config, name = plan.stages[0].config, plan.job_path.name
        return cls(
            project=config.project,
            group=config.group or name,
            name=name,
            experiment_id=experiment_id,
            has_stages=len(plan.stages) > 1,
        )

    def name_of(self, series: MonitorRun) -> str:
        """Returns the name that people read."""
        stage = f"/{series.stage}" if self.has_stages else ""
        return f"{self.name}{stage}_{series.role}"

    def id_of(self, series: MonitorRun) -> str:
        """Returns an id that stays when the experiment resumes, and is unique to it."""
        text = f"{self.experiment_id}/{series.stage}/{series.role}"
        return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]


class Monitor(Protocol):
    """Shows points to people. Its calls block, and are made one at a time from any thread.

    Any exception means that the monitor is unavailable: the same points are sent again later. It
    skips points that it already has, from this process or an earlier one.
    """

    def write_points(self, points: Sequence[MetricPoint]) -> None:
        """Writes points, in the order of their events."""

    def close(self) -> None:
        """Writes pending data; no call follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorContext:
    """The configuration of a monitor for an experiment."""

    directory: Path
    """Directory for its own files."""
    names: MonitorRunNames
    arguments: Args = field(default_factory=dict)
    """The user's `monitor.monitor_args`."""
    configuration: Mapping[str, JsonValue] = field(default_factory=dict)
    """The experiment's configuration by stage, without secrets, to show with the metrics."""

    def argument(self, name: str) -> str:
        """Returns one of the user's arguments, or an empty text."""
        return str(self.arguments.get(name) or "")

    def configuration_of(self, stage: str) -> JsonValue:
        """Returns the configuration of a stage, with secrets hidden."""
        found: JsonValue = redact_secrets("", self.configuration.get(stage, {}))
        return found
