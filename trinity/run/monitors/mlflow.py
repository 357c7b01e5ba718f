"""Exports runs to MLflow: to a tracking server, or any store that its client can write to."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from trinity.run.monitors.monitor import MonitorContext
from trinity.run.monitors.points import MetricPoint, MonitorRun, by_series
from trinity.run.monitors.preview import COLUMNS
from trinity.runtime.json_values import JsonValue

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

DEFAULT_URI = "http://localhost:5000"
RUN_TAG = "trinity.run"
EVENT_TAG = "trinity.event"
"""The last event whose metrics a run has."""
ROLE_TAG = "trinity.role"
GROUP_TAG = "trinity.group"
TABLES_TAG = "mlflow.loggedArtifacts"
"""Names the files that MLflow shows as tables."""
MAX_TAG_CHARS = 5_000
"""The shortest limit of MLflow's releases; a longer value is cut, and is no JSON any more."""
MAX_METRICS = 999
"""Limit of one call with a tag; above it, MLflow's client would send the tag before the rest."""
LONGEST_NAME = 250
HASH_LENGTH = 10
MAX_PARAMS = 100
LONGEST_PARAM = 500
REQUEST_SECONDS = 20
"""Client limits unless the user sets any: MLflow's defaults retry for a quarter of an hour."""
CLIENT_LIMITS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(REQUEST_SECONDS),
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
}
_NOT_IN_A_NAME = re.compile(r"[^\w.\- /:]")


class _MlflowRun:
    """One MLflow run, and the newest event that it has."""

    def __init__(self, run_id: str, last_event: int) -> None:
        self.run_id = run_id
        self.last_event = last_event


class MlflowMonitor:
    """Tags each run with its last event, so that a resumed export skips earlier points.

    Points carry the times of their events, so resending a call after a lost answer gives the same
    rows in MLflow's database.
    """

    def __init__(self, context: MonitorContext) -> None:
        self._context = context
        self._client: MlflowClient | None = None
        self._experiment_id = ""
        self._runs: dict[MonitorRun, _MlflowRun] = {}

    def write_points(self, points: Sequence[MetricPoint]) -> None:
        """Sends the runs' missing points in as few calls per run as MLflow's limit allows."""
        for monitor_run, its_points in by_series(points):
            run = self._run_for(monitor_run)
            for part in _parts([point for point in its_points if point.event > run.last_event]):
                self._send(run, part)

    def close(self) -> None:
        """Marks the runs as terminated; a resumed export opens them again."""
        for run in self._runs.values():
            self._connect_once().set_terminated(run.run_id)

    def _send(self, run: _MlflowRun, points: Sequence[MetricPoint]) -> None:
        from mlflow.entities import RunTag

        last, client = points[-1].event, self._connect_once()
        for point in points:
            self._send_table(run, point)
        metrics = [metric for point in points for metric in _metrics(point)]
        while len(metrics) > MAX_METRICS:
            client.log_batch(run.run_id, metrics=metrics[:MAX_METRICS])
            metrics = metrics[MAX_METRICS:]
        client.log_batch(run.run_id, metrics=metrics, tags=[RunTag(EVENT_TAG, str(last))])
        run.last_event = last

    def _send_table(self, run: _MlflowRun, point: MetricPoint) -> None:
        """Writes the samples of a point to a file of its step, which a second try replaces."""
        if point.table is None:
            return
        client = self._connect_once()
        path = f"{metric_name(point.table.name)}/version_{point.step}.json"
        rows = [list(row) for row in point.table.rows]
        client.log_dict(run.run_id, {"columns": list(COLUMNS), "data": rows}, path)
        told = client.get_run(run.run_id).data.tags.get(TABLES_TAG, "[]")
        client.set_tag(run.run_id, TABLES_TAG, _with_table(told, path))

    def _run_for(self, monitor_run: MonitorRun) -> _MlflowRun:
        if monitor_run not in self._runs:
            self._runs[monitor_run] = self._find_run(monitor_run) or self._create_run(monitor_run)
        return self._runs[monitor_run]

    def _find_run(self, monitor_run: MonitorRun) -> _MlflowRun | None:
        """Finds the run that an earlier process started."""
        client, run_id = self._connect_once(), self._context.names.id_of(monitor_run)
        runs = client.search_runs([self._experiment_id], f"tags.`{RUN_TAG}` = '{run_id}'")
        if not runs:
            return None
        run = runs[0]
        client.update_run(run.info.run_id, status="RUNNING")
        return _MlflowRun(run.info.run_id, int(run.data.tags.get(EVENT_TAG, 0)))

    def _create_run(self, monitor_run: MonitorRun) -> _MlflowRun:
        from mlflow.entities import Param

        client, names = self._connect_once(), self._context.names
        tags = {
            RUN_TAG: names.id_of(monitor_run),
            ROLE_TAG: monitor_run.role,
            GROUP_TAG: names.group,
        }
        run = client.create_run(self._experiment_id, run_name=names.name_of(monitor_run), tags=tags)
        settings = self._context.configuration_of(monitor_run.stage)
        params = [Param(key, value[:LONGEST_PARAM]) for key, value in flat(settings)]
        for start in range(0, len(params), MAX_PARAMS):
            client.log_batch(run.info.run_id, params=params[start : start + MAX_PARAMS])
        return _MlflowRun(run.info.run_id, 0)

    def _connect_once(self) -> "MlflowClient":
        if self._client is not None:
            return self._client
        self._set_environment()
        # Imported here: it takes seconds, and reads its limits from the environment.
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=tracking_uri(self._context))
        project = self._context.names.project
        found = client.get_experiment_by_name(project)
        self._experiment_id = found.experiment_id if found else client.create_experiment(project)
        self._client = client
        return client

    def _set_environment(self) -> None:
        """Sets MLflow's variables, the only way to pass a password; services do not see them."""
        for name, value in CLIENT_LIMITS.items():
            os.environ.setdefault(name, value)
        for argument in ("username", "password"):
            if value := self._context.argument(argument):
                os.environ[f"MLFLOW_TRACKING_{argument.upper()}"] = value


def tracking_uri(context: MonitorContext) -> str:
    """Returns the address where the runs are kept."""
    return context.argument("uri") or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI


def metric_name(name: str) -> str:
    """Converts a name to a short path as MLflow requires; a truncated one ends in a hash."""
    allowed = _NOT_IN_A_NAME.sub("_", name.replace("@", "_at_"))
    path = "/".join(part for part in allowed.split("/") if part not in ("", ".", "..")) or "_"
    if len(path) <= LONGEST_NAME:
        return path
    digest = hashlib.sha256(path.encode()).hexdigest()[:HASH_LENGTH]
    return f"{path[: LONGEST_NAME - HASH_LENGTH - 1]}_{digest}"


def flat(value: JsonValue, at: str = "") -> Iterator[tuple[str, str]]:
    """Yields dotted keys and non-empty values."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from flat(item, f"{at}.{name}".lstrip("."))
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for index, item in enumerate(value):
            yield from flat(item, f"{at}.{index}")
    elif value not in (None, "", []):
        yield metric_name(at), str(value)


def _with_table(told: str, path: str) -> str:
    """Returns the tag with a table more, and without the oldest ones for which it has no room."""
    entry = {"path": path, "type": "table"}
    tables = [*(known for known in json.loads(told) if known != entry), entry]
    while len(tables) > 1 and len(json.dumps(tables)) > MAX_TAG_CHARS:
        tables = tables[1:]
    return json.dumps(tables)


def _metrics(point: MetricPoint) -> "list[Metric]":
    from mlflow.entities import Metric

    return [
        Metric(metric_name(name), value, point.unix_millis, point.step)
        for name, value in point.figures.items()
    ]


def _parts(points: Sequence[MetricPoint]) -> Iterator[Sequence[MetricPoint]]:
    """Splits points into parts that fit one call; a point with more forms its own part."""
    part: list[MetricPoint] = []
    size = 0
    for point in points:
        if part and size + len(point.figures) > MAX_METRICS:
            yield part
            part, size = [], 0
        part.append(point)
        size += len(point.figures)
    if part:
        yield part
