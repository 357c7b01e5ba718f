"""Names on the hub: told before the start when they have to be fetched, and told from paths."""

from pathlib import Path

import pytest

from tests.unit.config.builders import config, write_model
from trinity.config.advice import advice
from trinity.config.plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.config.preflight import check_inputs
from trinity.errors import UserError

MODEL = "`model.model_path: some/model`"
TASKS = "taskset `train`, `path: some/tasks`"
FETCHED = "is not here and not in the hub's cache: it is fetched from the hub at the start"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache, empty."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.chdir(tmp_path)
    return folder


def planned(model: str = "some/model", tasks: str = "some/tasks") -> ExperimentPlan:
    taskset = {"path": tasks}
    changes = {"model_path": model}
    return plan_experiment(config(model=changes, buffer={"explorer_input": {"taskset": taskset}}))


def test_what_has_to_be_fetched_is_told() -> None:
    assert advice(planned()) == (f"{MODEL} {FETCHED}", f"{TASKS} {FETCHED}")


def test_what_was_fetched_before_is_not(cache: Path) -> None:
    write_model(cache / "models--some--model/snapshots/abc")
    (cache / "datasets--some--tasks/snapshots/abc").mkdir(parents=True)
    assert advice(planned()) == ()


def test_a_dataset_that_may_not_be_fetched_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        UserError, match=r"taskset `train`: `path: some/tasks` is neither .* nor in"
    ):
        check_inputs(planned())


@pytest.mark.parametrize(
    "path", ["./some", "~/no-such-place/tasks", "/no/such", "absent/rows.jsonl", "here/rows"]
)
def test_a_path_that_looks_local_and_is_not_there_is_named(path: str, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    plan = planned(tasks=path)
    with pytest.raises(UserError) as refused:
        check_inputs(plan)
    where = Path(path).expanduser().absolute()
    assert f"there is no file or directory {where}" in str(refused.value)


@pytest.mark.parametrize("path", ["./some", "~/no-such-place/model", "/no/such", "here/model"])
def test_a_model_that_looks_local_and_is_not_there_is_named(path: str, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    with pytest.raises(UserError) as refused:
        check_inputs(planned(model=path))
    where = Path(path).expanduser().absolute()
    assert f"there is no model directory {where}" in str(refused.value)
