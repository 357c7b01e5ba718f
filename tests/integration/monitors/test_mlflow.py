"""MLflow: in a store of its client's, and on a tracking server."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.monitors.builders import SECRET, TRAINER, setting, whole_points
from tests.unit.monitors.test_mlflow import ODD_NAMES
from trinity.run.monitors.mlflow import MlflowMonitor
from trinity.run.monitors.points import MetricPoint

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

pytestmark = [
    pytest.mark.timeout(400),
    # MLflow's own, from libraries that it was not written for.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

STORE = pytest.mark.parametrize("mlflow_uri", ["store"], indirect=True)


def client_of(uri: str) -> "MlflowClient":
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


def runs_of(client: "MlflowClient") -> "dict[str, Run]":
    experiment = client.get_experiment_by_name("sums")
    return {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


def write_some(uri: str, directory: Path, count: int) -> None:
    """As a process that was killed after it had written so many points."""
    MlflowMonitor(setting(directory, uri=uri)).write_points(whole_points()[:count])


def write_all(uri: str, directory: Path) -> None:
    monitor = MlflowMonitor(setting(directory, uri=uri))
    monitor.write_points(whole_points())
    monitor.close()


@pytest.mark.parametrize(
    "mlflow_uri", [pytest.param("store", marks=pytest.mark.thorough), "server"], indirect=True
)
def test_a_resumed_experiment_goes_on_in_its_runs_and_repeats_nothing(
    mlflow_uri: str, tmp_path: Path
) -> None:
    write_some(mlflow_uri, tmp_path, count=6)
    write_all(mlflow_uri, tmp_path)
    write_all(mlflow_uri, tmp_path)
    client = client_of(mlflow_uri)
    runs = runs_of(client)
    assert len(client.search_runs([runs["first/rft_trainer"].info.experiment_id])) == len(runs)
    assert {"first/rft_explorer", "first/rft_trainer", "first/sft_trainer"} <= set(runs)
    trainer = runs["first/rft_trainer"].info.run_id
    losses = client.get_metric_history(trainer, "actor/loss")
    assert [(one.step, one.value) for one in losses] == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    explorer = runs["first/rft_explorer"].info.run_id
    accuracies = client.get_metric_history(explorer, "eval/held_out/accuracy/mean_at_4")
    assert [one.step for one in accuracies] == [0, 2, 3]


@STORE
def test_figures_whose_answer_was_lost_are_no_others(mlflow_uri: str, tmp_path: Path) -> None:
    write_all(mlflow_uri, tmp_path)
    client = client_of(mlflow_uri)
    run = runs_of(client)["first/rft_trainer"]
    client.set_tag(run.info.run_id, "trinity.event", "0")
    write_all(mlflow_uri, tmp_path)
    losses = client.get_metric_history(run.info.run_id, "actor/loss")
    assert [one.step for one in losses] == [1, 2, 3]


@STORE
def test_a_run_shows_its_configuration_and_no_secret(mlflow_uri: str, tmp_path: Path) -> None:
    write_all(mlflow_uri, tmp_path)
    run = runs_of(client_of(mlflow_uri))["first/rft_trainer"]
    assert run.data.params["seed"] == "7"
    assert run.data.params["model.path"] == "/m"
    assert SECRET not in str(run.data.params)
    assert run.data.tags["trinity.role"] == TRAINER.role
    assert run.info.status == "FINISHED"


@STORE
def test_another_experiment_of_the_same_name_has_runs_of_its_own(
    mlflow_uri: str, tmp_path: Path
) -> None:
    write_all(mlflow_uri, tmp_path)
    other = MlflowMonitor(setting(tmp_path, "another", uri=mlflow_uri))
    other.write_points(whole_points())
    client = client_of(mlflow_uri)
    experiment = client.get_experiment_by_name("sums").experiment_id
    names = [run.info.run_name for run in client.search_runs([experiment])]
    assert names.count("first/rft_trainer") == 2


def large_point(num_figures: int) -> MetricPoint:
    figures = {f"rollout/{number}/mean": 1.0 for number in range(num_figures)}
    return replace(whole_points()[0], series=TRAINER, event=7, figures=figures)


@STORE
def test_any_name_of_a_figure_is_taken(mlflow_uri: str, tmp_path: Path) -> None:
    point = large_point(1)
    figures = point.figures | dict.fromkeys(ODD_NAMES, 0.5)
    MlflowMonitor(setting(tmp_path, uri=mlflow_uri)).write_points([replace(point, figures=figures)])
    run = runs_of(client_of(mlflow_uri))["first/rft_trainer"]
    assert "rollout/format/mean" in run.data.metrics
    assert "rollout/0/mean" in run.data.metrics


@STORE
@pytest.mark.parametrize("num_figures", [1000, 2500])
def test_a_run_has_no_event_before_all_of_its_figures(
    mlflow_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_figures: int
) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    monitor = MlflowMonitor(setting(tmp_path, uri=mlflow_uri))
    sent: list[tuple[int, int]] = []
    to_store = SqlAlchemyStore.log_batch

    def log_batch(store: object, run_id: str, metrics: list[object], **more: list[object]) -> None:
        sent.append((len(metrics), len(more["tags"])))
        to_store(store, run_id=run_id, metrics=metrics, **more)

    monkeypatch.setattr(SqlAlchemyStore, "log_batch", log_batch)
    monitor.write_points([large_point(num_figures)])
    of_metrics = [(count, tags) for count, tags in sent if count]
    assert sum(count for count, _ in of_metrics) == num_figures
    assert [tags for _, tags in of_metrics] == [0] * (len(of_metrics) - 1) + [1]
    run = runs_of(client_of(mlflow_uri))["first/rft_trainer"]
    assert len(run.data.metrics) == num_figures
    assert run.data.tags["trinity.event"] == "7"
