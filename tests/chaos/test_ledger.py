"""Which kills count, and what is still to be tried."""

from dataclasses import replace
from pathlib import Path

from tests.chaos import ledger, sources
from tests.chaos.ledger import KILLS, TIMES, Trial, counted, missing
from tests.chaos.points import CAMPAIGN, POINTS
from tests.chaos.recovery import STRUCK, variety_of
from tests.chaos.table import table_of
from tests.chaos.varieties import VARIETIES

POINT = "buffer.results-committed"
KILL = Trial(
    commit="0123456789",
    seed=1,
    variety="plain",
    experiment="under-fire-1",
    target=POINT,
    sources=sources.digest_of(POINT),
    load_before=1.0,
    load_after=1.5,
    back_seconds=2.5,
    found={},
    ends_the_same=True,
)


def test_rows_are_read_as_they_were_added(tmp_path: Path) -> None:
    path = tmp_path / "faults.jsonl"
    other = replace(KILL, found={"stored_once": ["twice"]}, back_seconds=None)
    ledger.append([KILL], path)
    ledger.append([other], path)
    assert ledger.read(path) == [KILL, other]


def test_a_kill_counts_as_long_as_the_files_it_was_a_trial_of_are_unchanged() -> None:
    changed, unknown = replace(KILL, sources="0" * 16), replace(KILL, target="buffer.no-such")
    assert counted([KILL, changed, unknown]) == [KILL]


def test_a_digest_is_that_of_the_points_file_and_what_it_imports_of_its_service() -> None:
    files = sources._closure(POINTS[POINT].target)
    names = {str(file.relative_to(sources.REPOSITORY)) for file in files}
    assert {"services/buffer/ingest/ingest.py", "services/buffer/store/reports.py"} <= names
    assert all(name.startswith("services/buffer/") for name in names)
    assert not any("servicer" in name for name in names)


def test_what_lacks_is_said_of_each_target_and_kind_and_of_the_whole() -> None:
    lacks = missing([KILL] * TIMES, ["plain", "visited"])
    assert POINT not in lacks
    assert "plain" not in lacks
    assert lacks["explorer SIGSTOP"] == lacks["visited"] == TIMES
    assert lacks["any"] == KILLS - TIMES


def test_each_target_has_a_kind_of_experiment_that_comes_to_it() -> None:
    assert {variety_of(one) for one in (*CAMPAIGN, *STRUCK)} <= {"", "hosts", *VARIETIES}


def test_the_table_counts_what_was_found_of_an_experiment_once() -> None:
    bad = replace(KILL, found={"stored_once": ["twice"]}, ends_the_same=False)
    stalled = replace(KILL, experiment="under-fire-2", back_seconds=None)
    lines = table_of([bad, bad, stalled]).splitlines()
    assert f"| `{POINT}` | 3 | 2.5 | 2.5 |  | 0 | 1 | 1 |" in lines
    assert "3 of them were in experiments whose weights are promised; 1 of these" in lines[0]


def test_kills_of_a_process_are_held_against_the_same_where_there_is_next_to_no_work() -> None:
    kill = replace(KILL, target="buffer SIGKILL", back_seconds=6.0)
    alone = replace(kill, target="buffer SIGKILL alone", variety="alone", back_seconds=4.0)
    lines = table_of([kill, alone]).splitlines()
    assert "| buffer, SIGKILL | 1 | 6.0 | 6.0 | 1.50 | 0 | 0 | 0 |" in lines
    assert "| buffer, SIGKILL, alone | 1 | 4.0 | 4.0 |  | 0 | 0 | 0 |" in lines
