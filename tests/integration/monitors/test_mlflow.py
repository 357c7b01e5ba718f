"""MLflow: in a store of its client's, and on a tracking server."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.monitors.builders import SECRET, TRAINER, setting, whole_points
from trinity.monitors.mlflow import MlflowMonitor

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
    MlflowMonitor(setting(directory, uri=uri)).write(whole_points()[:count])


def write_all(uri: str, directory: Path) -> None:
    monitor = MlflowMonitor(setting(directory, uri=uri))
    monitor.write(whole_points())
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
    other.write(whole_points())
    client = client_of(mlflow_uri)
    experiment = client.get_experiment_by_name("sums").experiment_id
    names = [run.info.run_name for run in client.search_runs([experiment])]
    assert names.count("first/rft_trainer") == 2
