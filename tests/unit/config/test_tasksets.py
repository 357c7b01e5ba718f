"""Tasksets as they are written: several, from anywhere, drawn by any selector."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.config.builders import stage, write_rows
from tests.unit.subtests import as_subtests
from trinity.config.checks.data import check_number_of_tasks, check_taskset, placed_sample_rows
from trinity.config.checks.rows import single_bad_rows
from trinity.config.loading.load import read_config
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.plan.task_storage import without_password
from trinity.config.schema.choices import DifficultyConfig
from trinity.errors import UserError

DIFFICULTY = {"selector_type": "difficulty_based", "feature_keys": ["weak", "strong"]}


def with_tasksets(*tasksets: Mapping[str, object], **buffer: object) -> StagePlan:
    given = {"taskset": None, "tasksets": list(tasksets)}
    return stage(buffer={"explorer_input": given, **buffer})


def with_taskset(**taskset: object) -> StagePlan:
    return stage(buffer={"explorer_input": {"taskset": taskset}})


def test_several_tasksets_have_their_own_workflows_and_samplings() -> None:
    plan = with_tasksets(
        {"path": "/data/a.jsonl", "default_workflow_type": "math_workflow"},
        {"name": "b", "path": "/data/b.csv", "rollout_args": {"temperature": 0.5}},
    )
    assert [one.name for one in plan.tasksets] == ["taskset_0", "b"]
    assert [one.workflow for one in plan.tasksets] == ["math_workflow", "simple_workflow"]
    assert [one.sampling.temperature for one in plan.tasksets] == [1.0, 0.5]
    assert [one.repeat_times for one in plan.tasksets] == [8, 8]
    assert plan.taskset == plan.tasksets[0]


def test_paths_are_files_hub_names_or_addresses(tmp_path: Path) -> None:
    here = tmp_path / "people" / "sums"
    here.mkdir(parents=True)
    for given, resolved in (
        ("people/sums", "people/sums"),
        ("/data/x.jsonl", "/data/x.jsonl"),
        (str(here), str(here)),
        ("./rows.csv", str(Path.cwd() / "rows.csv")),
    ):
        assert with_taskset(path=given).tasksets[0].path == resolved
    address = "postgresql://me:secret@db:5432/tasks"
    table = with_taskset(name="sums", storage_type="sql", path=address).tasksets[0]
    assert (table.path, table.table) == (address, "sums")
    assert without_password(address) == "postgresql://me:***@db:5432/tasks"


def test_selectors_take_their_arguments() -> None:
    kwargs = {"tau": 0.5, "target_reward": 0.8}
    [taskset] = with_taskset(path="/a", data_selector={**DIFFICULTY, "kwargs": kwargs}).tasksets
    assert taskset.selector.difficulty == DifficultyConfig(tau=0.5, target_reward=0.8)
    assert taskset.selector.feature_keys == ("weak", "strong")
    for kind in ("sequential", "shuffle", "random"):
        assert with_taskset(path="/a", data_selector={"selector_type": kind}).tasksets


@as_subtests(
    ("taskset", "sentence"),
    [
        ({"path": None}, "`storage_type: file` reads it"),
        ({"storage_type": "client", "path": "/a"}, "remove one of the two"),
        ({"path": "/a", "table": "t"}, "goes with `storage_type: sql` only"),
        ({"storage_type": "sql", "path": "mysql://x/y"}, "give postgresql://... or sqlite:///..."),
        ({"data_selector": {"selector_type": "offline_easy2hard"}}, "name a column of numbers"),
        ({"data_selector": {**DIFFICULTY, "feature_keys": ["a"]}}, "takes two"),
        ({"data_selector": {"feature_keys": ["a"]}}, "means nothing to sequential"),
        ({"data_selector": {"kwargs": {"m": 1}}}, "means nothing to sequential"),
        ({"data_selector": {**DIFFICULTY, "kwargs": {"taus": 1}}}, "kwargs.taus.*are m, lamb, rho"),
        ({"data_selector": {**DIFFICULTY, "kwargs": {"rho": 2}}}, "kwargs.rho"),
    ],
)
def test_keys_that_do_not_go_together_are_named(taskset: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        with_taskset(**{"path": "/a", **taskset})


def test_a_selector_that_learns_from_batches_needs_a_trainer() -> None:
    given = {"explorer_input": {"taskset": {"path": "/a", "data_selector": DIFFICULTY}}}
    assert stage(buffer=given).tasksets
    with pytest.raises(UserError, match=r"selector_type`: .* `mode: explore` has none of"):
        stage(mode="explore", buffer=given)


def test_what_clients_commit_is_a_queue_that_is_trained_meanwhile() -> None:
    clients = {"storage_type": "queue", "default_workflow_type": "clients"}

    def planned(taskset: Mapping[str, object], **more: object) -> StagePlan:
        given = {"explorer_input": {"taskset": taskset}, "total_steps": 4}
        return stage(buffer={**given, **more.pop("buffer", {})}, **more)  # type: ignore[dict-item]

    late: dict[str, object] = {"synchronizer": {"sync_offset": 1}}
    plan = planned(clients, **late)
    assert plan.tasksets[0].is_of_clients and not plan.trains_explore_steps
    assert plan.experience_buffer.max_read_timeout > 86_400, "clients may ask nothing for days"
    replay = {"trainer_input": {"experience_buffer": {"replay_buffer": {"enable": True}}}}
    refused: list[tuple[Mapping[str, object], dict[str, object], str]] = [
        (clients, {}, "`synchronizer.sync_offset: 0`: the workflow `clients`.*give 1 or more"),
        ({**clients, "storage_type": "client", "path": None}, late, "give `storage_type: queue`"),
        (clients, {**late, "mode": "explore"}, "give `mode: both`"),
        (clients, {**late, "buffer": replay}, "`replay_buffer.enable`"),
    ]
    for taskset, more, words in refused:
        with pytest.raises(UserError, match=words):
            planned(taskset, **more)


def test_a_queue_stands_alone_and_says_how_long_it_may_last() -> None:
    queue = {"name": "tasks", "storage_type": "queue"}
    assert with_tasksets(queue).tasksets[0].storage_type == "queue"
    with pytest.raises(UserError, match="cannot be mixed"):
        with_tasksets(queue, {"path": "/a"})
    with pytest.raises(UserError, match=r"give `buffer.total_steps`"):
        with_tasksets(queue, total_steps=None)
    with pytest.raises(UserError, match="an evaluation takes the same tasks each time"):
        stage(buffer={"explorer_input": {"eval_tasksets": [queue]}})
    with pytest.raises(UserError, match="are both given"):
        stage(buffer={"explorer_input": {"tasksets": [queue]}})


def test_an_older_name_in_the_list_acts_and_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        "buffer:\n  explorer_input:\n    tasksets:\n"
        "    - {name: a, task_selector: {selector_type: random}}\n"
    )
    reading = read_config(file)
    assert reading.config is not None
    (taskset,) = reading.config.buffer.explorer_input.tasksets
    assert taskset.data_selector.selector_type == "random"
    assert [notice.status for notice in reading.notices] == ["renamed"]


def test_all_tasksets_together_must_be_enough_for_a_step(tmp_path: Path) -> None:
    files = [
        write_rows(tmp_path / f"{i}.jsonl", *({"prompt": "a", "response": "b"} for _ in range(3)))
        for i in range(2)
    ]
    many = [{"path": file} for file in files]
    plan = with_tasksets(*many, total_steps=None, batch_size=6)
    check_number_of_tasks(plan)
    assert plan.num_explore_steps(6) == 1
    with pytest.raises(UserError, match="its 6 rows make no train step"):
        check_number_of_tasks(with_tasksets(*many, total_steps=None, batch_size=7))


def test_features_are_looked_for_in_the_first_row(tmp_path: Path) -> None:
    row = {"prompt": "a", "response": "b", "weak": 0.5, "strong": "high"}
    file = write_rows(tmp_path / "a.jsonl", row)
    [taskset] = with_taskset(path=file, data_selector=DIFFICULTY).tasksets
    with pytest.raises(UserError, match="column `strong` of its first row is not a number"):
        check_taskset(taskset)
    selector = {**DIFFICULTY, "feature_keys": ["weak", "mean"]}
    [taskset] = with_taskset(path=file, data_selector=selector).tasksets
    with pytest.raises(UserError, match="its rows have no column `mean`"):
        check_taskset(taskset)


NESTED = {"prompt": "a", "reward_model": {"ground_truth": "1"}}
LACKING = {"prompt": "a", "reward_model": None}


def test_a_column_that_the_first_row_lacks_is_looked_for_in_the_others(tmp_path: Path) -> None:
    """One row in five without a truth is advice; three in five are an error, with the first."""
    form = {"prompt_key": "prompt", "response_key": "reward_model.ground_truth"}
    given = {"format": form, "default_workflow_type": "math_workflow"}
    few = write_rows(tmp_path / "few.jsonl", LACKING, *[NESTED] * 4)
    [taskset] = with_taskset(path=few, **given).tasksets
    check_taskset(taskset)
    advice = single_bad_rows(taskset, placed_sample_rows(taskset))
    assert "1 of its first 5 rows cannot be asked or scored" in advice
    assert ":1: there is no column `reward_model.ground_truth`" in advice
    many = write_rows(tmp_path / "many.jsonl", *[NESTED] * 2, *[LACKING] * 3)
    [taskset] = with_taskset(path=many, **given).tasksets
    with pytest.raises(UserError, match=r"3 of its first 5 rows have no column .*first is .*:3"):
        check_taskset(taskset)


@pytest.mark.parametrize("knows", [False, True])
def test_columns_that_a_pipeline_may_make_are_not_missed(tmp_path: Path, knows: bool) -> None:
    """Only Data-Juicer knows what its operators add; a pipeline of ours adds no answer."""
    annotated = {"name": "human_preference_mapper"}
    pipeline = {"top_k": 1} if knows else {"operators": [annotated]}
    file = write_rows(tmp_path / "a.jsonl", {"prompt": "a"})
    given = {"path": file, "default_reward_fn_type": "math_reward"}
    [taskset] = stage(
        buffer={"explorer_input": {"taskset": given}},
        data_processor={"task_pipeline": {"inputs": [file], **pipeline}},
        service={"data_juicer": {"auto_start": True}},
    ).tasksets
    if knows:
        with pytest.raises(UserError, match="no column `response`"):
            check_taskset(taskset)
    else:
        check_taskset(taskset)
