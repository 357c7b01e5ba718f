"""Task sets of hubs in a configuration: their place in the plan, and what the check says."""

from pathlib import Path

import pytest

from tests.support.stand_in_hub import make_hub
from tests.unit.config.builders import config
from trinity.config.checks.hubs import hub_notes
from trinity.config.checks.packages import missing_packages
from trinity.config.checks.runtime import check_local_inputs
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.plan.task_storage import mounted_path
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.user_code.hubs.place import HUBS_VARIABLE, STAMP, HubPlace


def planned(path: str | None, *, hub: str = "verifiers", **taskset: object) -> ExperimentPlan:
    taskset |= {"path": path, "default_workflow_type": hub, "name": "sums"}
    return plan_experiment(config(buffer={"explorer_input": {"taskset": taskset}}))


def place_of(plan: ExperimentPlan) -> HubPlace | None:
    return HubPlace.parse(plan.stages[0].tasksets[0].path)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(HUBS_VARIABLE, str(tmp_path / "hubs"))
    monkeypatch.chdir(tmp_path)
    make_hub(tmp_path / "hubs", "verifiers")
    return tmp_path / "hubs" / "verifiers"


def test_a_plan_has_the_hub_the_path_and_what_decides_on_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a?b: c").mkdir()
    args = {"env": {"a": 1}, "num_tasks": 3, "max_calls": 5}
    place = place_of(planned("a?b: c", workflow_args=args))
    assert place == HubPlace(
        "verifiers", str(tmp_path / "a?b: c"), {"env": {"a": 1}, "num_tasks": 3}
    )
    for path, found in (
        ("mine.py", str(tmp_path / "mine.py")),
        ("owner/name", "owner/name"),
    ):
        assert place_of(planned(path)) == HubPlace("verifiers", found, {})
    address = "http://127.0.0.1:8000"
    assert place_of(planned(address, hub="openenv")) == HubPlace("openenv", address, {})
    with pytest.raises(UserError, match="is an address, where a path"):
        planned(address)


def test_a_path_of_another_workflow_is_no_place_of_a_hub() -> None:
    assert HubPlace.parse("/verifiers:/a?{}") is None
    assert HubPlace.parse(None) is None
    assert HubPlace.parse("postgresql://a?b") is None


@pytest.mark.parametrize(
    ("taskset", "words"),
    [
        ({"path": None}, "names the environment of verifiers"),
        ({"path": "a.db", "storage_type": "sql"}, "names the environment of verifiers"),
        ({"path": "a", "workflow_args": {"env": {"a": "x" * 999}}}, "more than 1,000 bytes"),
    ],
)
def test_what_is_no_place_of_a_hub_is_refused(taskset: dict[str, object], words: str) -> None:
    path = taskset.pop("path")
    with pytest.raises(UserError, match=words):
        planned(path, **taskset)  # type: ignore[arg-type]


def test_a_train_step_is_an_explore_step() -> None:
    assert planned("a").stages[0].trains_explore_steps


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("broken", "stage `main`, taskset `sums`: it cannot load broken: SyntaxError"),
        ("empty", "empty has no tasks"),
        ("gone", r"for gone ended \(with exit code 4\)"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_a_task_set_is_loaded_by_the_check(path: str, words: str) -> None:
    plan = planned(path)
    with pytest.raises(UserError, match=words):
        check_local_inputs(plan.stages)
    assert list(hub_notes(plan.stages)) == []


@pytest.mark.usefixtures("hub")
def test_what_episodes_fetch_is_advice() -> None:
    plan = planned("fetching")
    check_local_inputs(plan.stages)
    said = "taskset `sums`: it fetches things: that needs the network"
    assert list(hub_notes(plan.stages)) == [said]
    assert list(hub_notes(planned("quiet").stages)) == []


def test_a_missing_or_old_environment_is_one_sentence(hub: Path) -> None:
    plan = planned("broken")

    def missing() -> list[str]:
        return [text for text in missing_packages(plan) if "hub" in text]

    assert missing() == []
    (hub / STAMP).write_text("of a release before")
    (said,) = missing()
    assert f"{hub}, is of another release: run `trinity setup hub verifiers`" in said
    (hub / STAMP).unlink()
    (said,) = missing()
    assert "is missing" in said
    check_local_inputs(plan.stages)  # nothing is started


def test_a_deployment_mounts_the_folder_of_an_environment() -> None:
    for path, folder in (("/a/sums.py", "/a"), ("/a/sums", "/a/sums"), ("owner/name", "")):
        assert mounted_path(str(HubPlace("verifiers", path, {}))) == folder
    assert mounted_path("/a/rows.jsonl") == "/a/rows.jsonl"
