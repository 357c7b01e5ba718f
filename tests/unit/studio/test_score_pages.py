"""The pages Tasks and Evaluations in Streamlit, over a run that answers without processes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.unit.studio.fake_run import KEY, FakeStudio, said, stored_stage
from tests.unit.studio.test_runs import a_run
from trinity.api.v1 import experience_pb2, query_pb2
from trinity.errors import Unavailable
from trinity.studio.pages import common, tasks

HOSTILE = "<script>alert(1)</script> [x](http://evil) ![](http://evil/i.png) \u202e"


def tasks_page() -> None:
    from trinity.studio.pages import tasks

    tasks.show()


def evaluations_page() -> None:
    from trinity.studio.pages import evaluations

    evaluations.show()


@pytest.fixture
def rows_of(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[str, ...]]]:
    """What tables show, by their names; AppTest does not see own components."""
    shown: dict[str, list[tuple[str, ...]]] = {}

    def show_table(name: str, columns: object, rows: list[object], **_: object) -> None:
        del columns
        shown[name] = [row.cells for row in rows]  # type: ignore[attr-defined]

    monkeypatch.setattr(common, "show_table", show_table)
    return shown


def scores(*tasks: tuple[int, dict[int, int]]) -> list[query_pb2.ListTaskScoresResponse]:
    """Of each task the passed runs, of two, by version."""
    told = [
        query_pb2.TaskScores(
            taskset="math",
            task_index=index,
            num_draws=len(passed),
            versions=[
                query_pb2.VersionScore(
                    version=version, num_runs=2, num_scored=2, num_passed=n, mean=n / 2
                )
                for version, n in passed.items()
            ],
        )
        for index, passed in tasks
    ]
    head = query_pb2.TaskScoresHead(num_draws=12_345, num_draws_read=10_000)
    return [
        query_pb2.ListTaskScoresResponse(head=head),
        query_pb2.ListTaskScoresResponse(page=query_pb2.TaskScoresPage(tasks=told)),
    ]


def answers(response: str = HOSTILE) -> list[query_pb2.ListExperiencesResponse]:
    sequence = experience_pb2.Sequence(prompt_text=HOSTILE, response_text=response)
    record = query_pb2.ExperienceRecord(
        id="x", reward=0.5, content=experience_pb2.Experience(sequence=sequence)
    )
    return [query_pb2.ListExperiencesResponse(experiences=[record])]


def opened(
    page: Callable[[], None], studio: FakeStudio, **parameters: str
) -> tuple[AppTest, list[str]]:
    studio.show()
    app = AppTest.from_function(page)
    for name, value in parameters.items():
        app.query_params[name] = value
    app.run(timeout=30)
    assert not app.exception
    return app, said(app)


def test_the_hardest_task_is_first_and_a_cut_is_told(
    tmp_path: Path, rows_of: dict[str, list[tuple[str, ...]]]
) -> None:
    told = scores((3, {0: 2, 1: 2}), (8, {0: 0, 1: 1}))
    studio = FakeStudio(a_run(tmp_path), ListStages=stored_stage(n=4), ListTaskScores=told)
    app, texts = opened(tasks_page, studio)
    assert [row[0] for row in rows_of["Tasks"]] == ["8", "3"]
    assert rows_of["Tasks"][0] == ("8", "2", "1 of 4", "0.25", "1", "0%", "50%")
    assert any("the newest 10,000 of 12,345 draws" in text for text in texts)
    app.radio[0].set_value("easiest").run()
    assert [row[0] for row in rows_of["Tasks"]] == ["3", "8"]
    assert len(studio.service.requests["ListTaskScores"]) == 1  # kept while nothing is new
    given = query_pb2.StateCount(state=query_pb2.EXPERIENCE_STATE_RAW, count=4)
    stage = query_pb2.StoredStage(key=KEY, counts=[given])
    studio.service.answers["ListStages"] = query_pb2.ListStagesResponse(stages=[stage])
    app.run()
    assert len(studio.service.requests["ListTaskScores"]) == 2  # a reward came later


def test_tasks_that_are_drawn_rarely_have_columns_of_drawings_and_not_of_versions(
    tmp_path: Path, rows_of: dict[str, list[tuple[str, ...]]]
) -> None:
    told = scores((1, {0: 0}), (2, {5: 1}), (3, {9: 2}), (4, {12: 0, 14: 2}), (5, {17: 2}))
    studio = FakeStudio(a_run(tmp_path), ListStages=stored_stage(n=4), ListTaskScores=told)
    _, texts = opened(tasks_page, studio)
    assert [row[5:] for row in rows_of["Tasks"]] == [
        ("v0 0%", ""),
        ("v12 0%", "v14 100%"),
        ("v5 50%", ""),
        ("v9 100%", ""),
        ("v17 100%", ""),
    ]
    assert any(text.startswith(tasks.OF_DRAWINGS) for text in texts)


def test_a_task_shows_what_the_model_wrote_as_text_alone(
    tmp_path: Path, rows_of: dict[str, list[tuple[str, ...]]]
) -> None:
    studio = FakeStudio(
        a_run(tmp_path),
        ListStages=stored_stage(n=4),
        ListTaskScores=scores((3, {0: 2})),
        ListExperiences=answers(),
    )
    app, _ = opened(tasks_page, studio, task="math:3")
    codes = [code.value for code in app.code]
    assert len(codes) == 2
    assert all(code.startswith("<script>") and "\u202e" not in code for code in codes)
    assert not app.markdown
    assert rows_of["Tasks"]


def test_a_score_that_no_run_reaches_is_told(
    tmp_path: Path, rows_of: dict[str, list[tuple[str, ...]]]
) -> None:
    studio = FakeStudio(
        a_run(tmp_path), ListStages=stored_stage(n=4), ListTaskScores=scores((3, {0: 0}))
    )
    _, texts = opened(tasks_page, studio, **{"pass": "2.5"})
    assert any(text.startswith("No run reached 2.5: lower the score") for text in texts)
    assert studio.service.requests["ListTaskScores"][0].pass_score == 2.5
    assert studio.service.requests["ListTaskScores"][0].key == KEY
    assert rows_of["Tasks"]


def test_lost_and_won_tasks_are_shown_with_both_answers(
    tmp_path: Path, rows_of: dict[str, list[tuple[str, ...]]]
) -> None:
    told = scores((1, {0: 2, 8: 0}), (2, {0: 0, 8: 2}), (3, {0: 1, 8: 1}))
    studio = FakeStudio(
        a_run(tmp_path),
        ListStages=stored_stage(n=4),
        ListTaskScores=told,
        ListExperiences=answers(),
    )
    studio.evaluated("math", 0, 4, 8)
    app, texts = opened(evaluations_page, studio, task="math:2")
    assert [row[:2] for row in rows_of["Pairs of evaluations"]] == [("1", "lost"), ("2", "won")]
    assert list(studio.service.requests["ListTaskScores"][0].versions) == [0, 8]
    assert [
        request.filter.explore_step for request in studio.service.requests["ListExperiences"]
    ] == [
        0,
        8,
    ]
    assert {"version 0", "version 8"} <= set(texts)
    app.radio[0].set_value("all").run()
    assert len(rows_of["Pairs of evaluations"]) == 3


@pytest.mark.parametrize("page", [tasks_page, evaluations_page])
def test_services_that_do_not_answer_are_one_sentence(
    page: Callable[[], None], tmp_path: Path
) -> None:
    studio = FakeStudio(a_run(tmp_path), ListStages=Unavailable("the buffer is starting"))
    _, texts = opened(page, studio)
    assert "the buffer is starting" in texts


def test_one_evaluation_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    studio = FakeStudio(a_run(tmp_path), ListStages=stored_stage(n=4))
    _, texts = opened(evaluations_page, studio)
    assert any("No evaluation has ended yet" in text for text in texts)
    studio.evaluated("math", 0)
    _, texts = opened(evaluations_page, studio)
    assert any("Only one version was evaluated" in text for text in texts)
