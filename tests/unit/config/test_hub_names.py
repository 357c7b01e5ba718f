"""Names on the hub: told before the start when they have to be fetched, and told from paths."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.config.builders import GRPO, SFT, config, write_model
from trinity.config.checks.advice import advise
from trinity.config.checks.runtime import check_inputs
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
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
    assert advise(planned()) == (f"{MODEL} {FETCHED}", f"{TASKS} {FETCHED}")


def of_data(path: str) -> dict[str, object]:
    """Changes of a stage on data."""
    given = {"storage_type": "file", "path": path}
    return {"buffer": {"trainer_input": {"experience_buffer": given}}}


def of_experts(path: str, name: str = "sft_dataset") -> dict[str, object]:
    """Changes of a stage on rollouts and rows of data."""
    buffers = {name: {"storage_type": "file", "path": path}}
    return {
        "algorithm": {"algorithm_type": "mix", "sample_strategy_args": {"sft_dataset_name": name}},
        "buffer": {"trainer_input": {"auxiliary_buffers": buffers}},
    }


OF_ROWS = [(SFT, of_data, "experience buffer"), (GRPO, of_experts, "auxiliary buffer")]


@pytest.mark.parametrize(("base", "changes", "what"), OF_ROWS)
def test_rows_to_train_on_are_named_as_tasks_are(
    base: dict[str, object],
    changes: Callable[[str], dict[str, object]],
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    cache: Path,
) -> None:
    plan = plan_experiment(config(base, **changes("some/rows")))
    name = "experience_buffer" if base is SFT else "sft_dataset"
    assert advise(plan) == (f"{what} `{name}`, `path: some/rows` {FETCHED}",)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=rf"{what} `{name}`: `path: some/rows` is neither .* nor"):
        check_inputs(plan)
    (cache / "datasets--some--rows/snapshots/abc").mkdir(parents=True)
    assert advise(plan) == ()
    with pytest.raises(UserError) as others:
        check_inputs(plan)
    assert "some/rows" not in str(others.value)


@pytest.mark.parametrize(("base", "changes", "what"), OF_ROWS)
@pytest.mark.parametrize("path", ["./some", "/no/such", "absent/rows.jsonl", "here/rows"])
def test_rows_that_look_local_and_are_not_there_are_named(
    base: dict[str, object],
    changes: Callable[[str], dict[str, object]],
    what: str,
    path: str,
    tmp_path: Path,
) -> None:
    (tmp_path / "here").mkdir()
    with pytest.raises(UserError) as refused:
        check_inputs(plan_experiment(config(base, **changes(path))))
    where = Path(path).absolute()
    assert what in str(refused.value)
    assert f"there is no file or directory {where}" in str(refused.value)


def test_rows_that_no_batch_takes_are_not_fetched() -> None:
    unused = of_experts("some/rows")["buffer"]
    told = advise(plan_experiment(config(GRPO, buffer=unused)))
    assert not [text for text in told if "the hub" in text]


def test_what_was_fetched_before_is_not(cache: Path) -> None:
    write_model(cache / "models--some--model/snapshots/abc")
    (cache / "datasets--some--tasks/snapshots/abc").mkdir(parents=True)
    assert advise(planned()) == ()


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
