"""Exports runs to Weights & Biases; offline, to files that `wandb sync` sends later."""

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trinity.run.monitors.monitor import MonitorContext
from trinity.run.monitors.points import MetricPoint, MonitorRun
from trinity.run.monitors.preview import COLUMNS

if TYPE_CHECKING:
    import wandb

STEP = "train_step"
"""The curves' x axis: W&B's own step is the number of the event."""
FOLDER = "wandb"
ANSWER_SECONDS = 30.0


class WandbMonitor:
    """Derives a run's id from the experiment, so that a resumed experiment continues its run.

    W&B's step is the number of the event. Online it accepts each step once, from any process;
    offline files are replaced, never continued, as every reader starts with the first event.
    """

    def __init__(self, setting: MonitorContext) -> None:
        self._setting = setting
        self._runs: dict[MonitorRun, wandb.Run] = {}

    def write_points(self, points: Sequence[MetricPoint]) -> None:
        """Hands the points to W&B's own process, which sends them."""
        for point in points:
            run = self._run(point.series)
            if run.offline or point.event >= run.starting_step:
                shown = {**point.figures, **_table(point), STEP: point.step}
                run.log(shown, step=point.event, commit=True)

    def close(self) -> None:
        """Flushes and ends W&B's process: until then its files may lack the last rows."""
        for run in self._runs.values():
            run.finish()
        if self._runs:
            import wandb

            wandb.teardown()

    def _run(self, series: MonitorRun) -> "wandb.Run":
        if series not in self._runs:
            self._runs[series] = self._opened(series)
        return self._runs[series]

    def _opened(self, series: MonitorRun) -> "wandb.Run":
        # Imported here: it takes seconds.
        import wandb

        names, run_id = self._setting.names, self._setting.names.id_of(series)
        self._setting.directory.mkdir(parents=True, exist_ok=True)
        for old in (self._setting.directory / FOLDER).glob(f"offline-run-*-{run_id}"):
            shutil.rmtree(old)
        run = wandb.init(
            project=names.project,
            group=names.group,
            name=names.name_of(series),
            job_type=series.role,
            tags=[series.role],
            id=run_id,
            resume="allow",
            dir=self._setting.directory,
            config=self._config(series),
            reinit="create_new",
            settings=self._settings(),
        )
        run.define_metric(STEP, hidden=True)
        run.define_metric("*", step_metric=STEP)
        return run

    def _config(self, series: MonitorRun) -> dict[str, object]:
        shown = self._setting.configuration_of(series.stage)
        return dict(shown) if isinstance(shown, dict) else {}

    def _settings(self) -> "wandb.Settings":
        """Returns quiet settings without extra data collection; W&B's variables still apply."""
        import wandb

        settings = wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            init_timeout=ANSWER_SECONDS,
            x_disable_stats=True,
            x_disable_meta=True,
        )
        if address := self._setting.argument("base_url"):
            settings.base_url = address
        if key := self._setting.argument("api_key"):
            settings.api_key = key
        return settings


def _table(point: MetricPoint) -> "dict[str, wandb.Table]":
    """Returns the samples of a point under their name; empty for a point without samples."""
    if point.table is None:
        return {}
    import wandb

    rows = [list(row) for row in point.table.rows]
    return {point.table.name: wandb.Table(columns=list(COLUMNS), data=rows)}
