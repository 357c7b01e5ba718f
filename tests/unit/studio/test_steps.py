"""Train steps: their rows, the samples that they left out, and quantiles; and their page."""

import asyncio
import math
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.unit.studio.fake_run import KEY, Answer, FakeStudio, said
from tests.unit.studio.test_runs import a_run
from trinity.api.v1 import buffer_pb2, experience_pb2, query_pb2
from trinity.errors import TrinityError
from trinity.studio import widgets
from trinity.studio.pages import step as step_page
from trinity.studio.plain_text import number_text
from trinity.studio.steps import (
    MAX_GENERATED,
    RowOrder,
    distribution,
    distributions,
    generated_for,
    left_out,
    ordered_rows,
    step_view,
)


def record(
    name: str,
    *,
    state: str = "BATCHED",
    reason: str = "",
    reward: float | None = 1.0,
    explore_step: int = 4,
    tokens: int = 10,
) -> query_pb2.ExperienceRecord:
    return query_pb2.ExperienceRecord(
        id=name,
        eid=experience_pb2.Eid(explore_step=explore_step),
        taskset="train",
        task_index=3,
        state=f"EXPERIENCE_STATE_{state}",
        reason=reason,
        reward=reward,
        response_length=tokens,
    )


def row(
    position: int, sample: query_pb2.ExperienceRecord, advantage: float, weight: float = 1.0
) -> query_pb2.StepRow:
    use = query_pb2.BatchUse(position=position, advantage=advantage, weight=weight)
    return query_pb2.StepRow(use=use, experience=sample)


HEAD = query_pb2.StepHead(
    step=5,
    num_rows=3,
    incarnation=1,
    batch_metrics={"reward/mean": 0.5},
    trained=[
        buffer_pb2.StepTrained(step=5, incarnation=1, metrics={"actor/loss": 1.0}),
        buffer_pb2.StepTrained(step=5, incarnation=2, metrics={"actor/loss": 2.0}),
    ],
    weights_before=buffer_pb2.PublishedVersion(version=4),
)
ROWS = [
    row(0, record("a"), 0.5),
    row(1, record("b", tokens=30), -2.0),
    row(2, record("c", explore_step=5), 3.0, weight=0.0),
]
STEP = [
    query_pb2.GetStepResponse(head=HEAD),
    query_pb2.GetStepResponse(rows=query_pb2.StepRows(rows=ROWS)),
]
OTHERS = [
    record("d", state="FILTERED", reason="it was too long", reward=None, tokens=90),
    record("e", state="FILTERED", reason="it was too long", tokens=90),
    record("f", state="READY"),
    record("g"),
]
SAMPLES = [
    query_pb2.ListExperiencesResponse(experiences=[*(row.experience for row in ROWS[:2]), *OTHERS])
]


def a_studio(tmp_path: Path, **answers: Answer) -> FakeStudio:
    stage = query_pb2.StoredStage(key=KEY, recorded_step=7, trained_step=5)
    usual: dict[str, Answer] = {
        "ListStages": query_pb2.ListStagesResponse(stages=[stage]),
        "GetStep": STEP,
        "ListExperiences": SAMPLES,
    }
    return FakeStudio(a_run(tmp_path), **(usual | answers))


def test_a_step_is_read_with_its_newest_training(tmp_path: Path) -> None:
    opened = a_studio(tmp_path).connection.opened
    view = asyncio.run(step_view(opened, KEY, 5))
    assert (view.times_trained, view.incarnation, view.metrics["actor/loss"]) == (2, 2, 2.0)
    assert (view.version_before, view.version_after) == (4, None)
    assert view.explore_steps == (4, 5)
    assert step_page.step_line(view) == (
        "3 rows · explore steps 4 to 5 · trainer 2 · trained 2 times · weights v4 to not published"
    )


def test_the_row_that_moves_most_is_first_and_one_without_weight_last(tmp_path: Path) -> None:
    view = asyncio.run(step_view(a_studio(tmp_path).connection.opened, KEY, 5))
    by_influence = ordered_rows(view.rows, RowOrder.INFLUENCE)
    assert [known.position for known in by_influence] == [1, 0, 2]
    assert [known.position for known in ordered_rows(view.rows, RowOrder.POSITION)] == [0, 1, 2]


def test_what_was_left_out_is_counted_by_its_reason(tmp_path: Path) -> None:
    studio = a_studio(tmp_path)
    view = asyncio.run(step_view(studio.connection.opened, KEY, 5))
    generated = asyncio.run(generated_for(studio.connection.opened, view))
    asked = [request.filter.explore_step for request in studio.service.requests["ListExperiences"]]
    assert asked == [5, 4]
    found = {(group.state, group.reason): group.count for group in left_out(view, generated)}
    assert found == {
        ("filtered", "it was too long"): 4,
        ("ready", "may be trained on in a later step"): 2,
        ("batched", "trained on in another step"): 2,
    }


def test_a_step_of_very_many_samples_says_that_there_are_more(tmp_path: Path) -> None:
    many = [query_pb2.ListExperiencesResponse(experiences=[record("x")] * (MAX_GENERATED + 1))]
    opened = a_studio(tmp_path, ListExperiences=many).connection.opened
    view = asyncio.run(step_view(opened, KEY, 5))
    generated = asyncio.run(generated_for(opened, view))
    assert (len(generated.samples), generated.is_cut) == (MAX_GENERATED, True)


def test_quantiles_show_how_the_trained_samples_differ(tmp_path: Path) -> None:
    opened = a_studio(tmp_path).connection.opened
    view = asyncio.run(step_view(opened, KEY, 5))
    generated = asyncio.run(generated_for(opened, view))
    found = {(known.quantity, known.of): known for known in distributions(view, generated)}
    assert found["response tokens", "generated"].quantiles[-1] == 90
    assert found["response tokens", "trained on"].quantiles[-1] == 30
    assert found["reward", "generated"].num_values == 10  # one of six has none, and is asked twice
    assert ("advantage", "generated") not in found


def test_quantiles_leave_out_what_is_no_number() -> None:
    known = distribution("reward", "generated", [1.0, None, math.nan, math.inf, 3.0])
    assert known is not None
    assert (known.num_values, known.mean, known.quantiles) == (2, 2.0, (1.0, 1.5, 2.0, 2.5, 3.0))
    assert distribution("reward", "generated", [None]) is None


def test_a_step_without_a_batch_is_our_error(tmp_path: Path) -> None:
    opened = a_studio(tmp_path, GetStep=TrinityError("step 9 has no batch")).connection.opened
    with pytest.raises(TrinityError, match="step 9 has no batch"):
        asyncio.run(step_view(opened, KEY, 9))


def a_page() -> None:
    from trinity.studio.pages import step

    step.show()


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[str, ...]]]:
    """The cells of each table that the page shows."""
    shown: dict[str, list[tuple[str, ...]]] = {}

    def show_table(name: str, columns: object, rows: list[object], **_: object) -> None:
        del columns
        shown[name] = [known.cells for known in rows]  # type: ignore[attr-defined]

    monkeypatch.setattr(step_page, "show_table", show_table)
    monkeypatch.setattr(widgets, "show_table", show_table)
    return shown


def test_the_page_begins_with_the_newest_trained_step(
    tmp_path: Path, shown: dict[str, list[tuple[str, ...]]]
) -> None:
    studio = a_studio(tmp_path).show()
    app = AppTest.from_function(a_page).run(timeout=30)
    assert not app.exception
    assert studio.service.requests["GetStep"][-1].step == 5
    assert [cells[0] for cells in shown["Rows of the batch"]] == ["1", "0", "2"]
    assert shown["Left out"][0] == ("4", "filtered", "it was too long")
    assert shown["Generated and trained on"][0][:2] == ("reward", "generated")
    app.number_input[0].set_value(7).run()
    assert studio.service.requests["GetStep"][-1].step == 7


def test_a_stage_of_training_data_shows_its_rows(
    tmp_path: Path, shown: dict[str, list[tuple[str, ...]]]
) -> None:
    rows = [query_pb2.StepRow(row_json='{"prompt": "<b>"}', row_index=12)]
    step = [STEP[0], query_pb2.GetStepResponse(rows=query_pb2.StepRows(rows=rows))]
    a_studio(tmp_path, GetStep=step).show()
    app = AppTest.from_function(a_page).run(timeout=30)
    assert not app.exception
    assert shown["Rows of training data"] == [("0", "12", '{"prompt": "<b>"}')]
    assert "Left out" not in shown


def test_before_the_first_batch_the_page_says_when_one_comes(tmp_path: Path) -> None:
    stages = query_pb2.ListStagesResponse(stages=[query_pb2.StoredStage(key=KEY)])
    a_studio(tmp_path, ListStages=stages).show()
    app = AppTest.from_function(a_page).run(timeout=30)
    assert any(text.startswith("No step has a batch yet") for text in said(app))


def test_a_number_that_rounds_to_zero_has_no_sign() -> None:
    assert number_text(-0.001, is_signed=True) == "0.00"
    assert number_text(-0.006, is_signed=True) == "-0.01"
    assert number_text(-0.001) == "0.00"
