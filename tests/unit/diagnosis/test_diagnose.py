"""Of everything that waits, the part that holds the run is named, and the cause behind it."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.diagnosis.builders import (
    EXPERIMENT,
    STAGE,
    WORK,
    member,
    part,
    snapshot,
    wait,
    with_parts,
)
from trinity.api.v1 import synchronizer_pb2
from trinity.run.diagnosis import gather
from trinity.run.diagnosis.diagnose import diagnose
from trinity.run.diagnosis.rules import DiagnosisState
from trinity.run.diagnosis.snapshot import (
    ComponentSnapshot,
    CpuDemand,
    ProbeState,
    ProcessState,
    RecentExit,
)
from trinity.run.state import DeviceTurnReport, DeviceWishReport, ExperimentReport, state_of
from trinity.runtime.members import WaitKind

BATCH = wait("trainer", "buffer", 30, "the batch of train step 13")
STRAGGLER = wait("explorer", "workflow", 29, "to end run 0 of row 3 of train", 171)
GONE = part("explorer", condition=ProcessState.GONE, reply=ProbeState.REFUSES)
SILENT = part("postgres", reply=ProbeState.SILENT, asked_seconds=0.5)
STARVED = CpuDemand(worked_seconds=0.4, queued_seconds=8.1)
AT_WORK = CpuDemand(worked_seconds=9.7, queued_seconds=0.1)
UNKNOWN = "StatusCode.DEADLINE_EXCEEDED"
FOLDER = "/data/p/run"


def test_a_run_that_gets_on_says_since_when_the_last_step_is_trained() -> None:
    verdict = diagnose(snapshot())
    assert verdict.state is DiagnosisState.WORKING and verdict.is_healthy
    assert "step 12 of 100 was trained 3 s ago. " in verdict.text
    busy = diagnose(snapshot(work=(WORK.model_copy(update={"idle_share": 0.625}),)))
    assert "3 s ago, and the trainer waited for 62% of the newest steps' time." in busy.text
    assert "the trainer is trainer at work" in verdict.text.lower()


def test_the_chain_is_followed_to_the_one_that_waits_for_nobody() -> None:
    verdict = diagnose(snapshot(member("trainer", BATCH), member("explorer", STRAGGLER)))
    assert verdict.state is DiagnosisState.HELD
    assert verdict.text.startswith("The run has waited 29 s for a workflow of the explorer")
    assert "ends in 2 min 51 s" in verdict.text and "train step 13" in verdict.text
    assert "explorer.max_timeout" in verdict.text and "/run/log/explorer.log" in verdict.text


def test_what_takes_no_longer_than_usual_is_shown_and_holds_nothing() -> None:
    usual = wait("explorer", "workflow", 5, "to end run 0 of row 3")
    verdict = diagnose(snapshot(member("trainer", BATCH), member("explorer", usual)))
    assert verdict.state is DiagnosisState.WORKING
    assert "has waited 5 s for a workflow: to end run 0 of row 3" in verdict.text


def test_an_explorer_without_work_does_not_hold_the_trainer_that_works() -> None:
    idle = wait("explorer", "buffer", 400, "explore step 13 needs weights version 12")
    assert diagnose(snapshot(member("explorer", idle))).state is DiagnosisState.WORKING
    silent = wait("trainer", "ranks", 60, "to report progress; the last report: training", 3540)
    verdict = diagnose(snapshot(member("explorer", idle), member("trainer", silent)))
    assert verdict.cause == "trainer waits for ranks"
    assert "restarts them from the newest checkpoint" in verdict.text


def test_the_buffers_own_wait_comes_before_the_work_that_is_open() -> None:
    slow = wait("buffer", "advantage function", 9, "mine.centered to shape the group of a task", 1)
    verdict = diagnose(snapshot(member("trainer", BATCH), member("buffer", slow)))
    assert verdict.cause == "buffer waits for advantage function"


def test_results_that_are_not_committed_wait_for_the_buffer() -> None:
    held = wait("explorer", "buffer", 8, "4 results", kind=WaitKind.COMMIT)
    verdict = diagnose(snapshot(member("trainer", BATCH), member("explorer", held)))
    assert verdict.text.startswith("The run waits for the buffer: the explorer has waited 8 s")
    assert "/run/log/buffer.log" in verdict.text


@pytest.mark.parametrize(
    ("of_trainer", "of_explorer", "said"),
    [
        (
            WaitKind.REWARDS,
            WaitKind.STATE,
            "The run waits for rewards from outside: the trainer has waited 30 s",
        ),
        (WaitKind.STATE, WaitKind.TASKS, "The run waits for tasks from outside: the explorer"),
    ],
)
def test_what_comes_from_outside_is_what_the_run_waits_for(
    of_trainer: WaitKind, of_explorer: WaitKind, said: str
) -> None:
    waiting = member("trainer", wait("trainer", "buffer", 30, kind=of_trainer))
    without_work = member("explorer", wait("explorer", "buffer", 20, kind=of_explorer))
    verdict = diagnose(snapshot(waiting, without_work))
    assert verdict.state is DiagnosisState.HELD
    assert verdict.text.startswith(said)
    assert "`trinity view state=awaiting`" in verdict.text or "--queue" in verdict.text
    usual = member("trainer", wait("trainer", "buffer", 4, kind=of_trainer))
    meanwhile = member("explorer", wait("explorer", "buffer", 4, kind=of_explorer))
    assert diagnose(snapshot(usual, meanwhile)).state is DiagnosisState.WORKING


def test_a_stage_without_rollouts_waits_for_no_explorer() -> None:
    stage = STAGE.model_copy(update={"roles": ("trainer",)})
    trains = EXPERIMENT.model_copy(update={"stages": (stage,)})
    verdict = diagnose(snapshot(member("trainer", BATCH), experiments=(trains,)))
    assert verdict.text.startswith("The run waits for the buffer: the trainer has waited 30 s")


def test_someone_at_work_who_says_nothing_is_not_believed_for_ever() -> None:
    old = WORK.model_copy(update={"step_age_seconds": 300.0})
    verdict = diagnose(snapshot(work=(old,)))
    assert verdict.state is DiagnosisState.HELD and "reports no wait" in verdict.text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"condition": ProcessState.GONE, "last_log_line": "PANIC: full"},
            "is gone (its last words: PA",
        ),
        ({"condition": ProcessState.STOPPED}, "kill -CONT 100"),
        ({"reply": ProbeState.REFUSES}, "127.0.0.1:5000 refuses connections"),
        ({"reply": ProbeState.REFUSES, "detail": "it says: starting up"}, "it says: starting up"),
        ({"reply": ProbeState.SILENT}, "takes connections and does not answer"),
    ],
)
def test_the_first_broken_part_is_named_and_not_those_that_suffer_from_it(
    changes: dict[str, object], words: str
) -> None:
    away = wait("buffer", "database", 12)
    now = with_parts(
        snapshot(member("trainer", BATCH), member("buffer", away)),
        part("postgres", **changes),
        part("buffer", reply=ProbeState.SILENT),
    )
    verdict = diagnose(now)
    assert verdict.state is DiagnosisState.BROKEN
    assert verdict.text.startswith("The run waits for Postgres: ")
    assert words in verdict.text and "/run/log/postgres.log" in verdict.text
    assert "the buffer has waited 12 s for it" in verdict.text


def test_a_part_that_is_started_again_is_named_with_the_end_of_the_one_before() -> None:
    died = RecentExit(pid=99, last_log_line="crashed reason=EngineDied", seconds_ago=1.0)
    starting = part("explorer", pid=123, reply=ProbeState.REFUSES, died=died)
    verdict = diagnose(with_parts(snapshot(), starting))
    assert verdict.state is DiagnosisState.BROKEN
    assert "process 99 is gone (its last words: crashed reason=EngineDied)" in verdict.text
    assert "process 123 starts" in verdict.text
    again = diagnose(with_parts(snapshot(), replace(starting, reply=ProbeState.ANSWERS)))
    assert again.state is DiagnosisState.WORKING
    assert "The explorer was started again 1 s ago: its process 99 is gone" in again.notes[0]


def test_a_stopped_rank_is_found_below_a_trainer_that_answers() -> None:
    now = with_parts(snapshot(), part("trainer", stopped={7: "services.trainer.rank"}))
    assert "its process 7 (services.trainer.rank) is stopped" in diagnose(now).text


def test_a_part_of_somebody_elses_is_not_said_to_be_started_anew() -> None:
    theirs = part(
        "nats", pid=0, condition=ProcessState.FOREIGN, reply=ProbeState.REFUSES, log_file=""
    )
    verdict = diagnose(with_parts(snapshot(), theirs))
    assert "Start it again" in verdict.text and "supervisor" not in verdict.text


def test_who_answers_and_cannot_tell_is_named() -> None:
    verdict = diagnose(snapshot(members=None, experiments=None, unanswered="no disk left"))
    assert "the synchronizer, which is alive but cannot report" in verdict.text
    assert "(no disk left)" in verdict.text
    assert "the buffer, which is alive" in diagnose(snapshot(work=None)).text


def test_a_role_that_nobody_plays_is_named() -> None:
    lost = member("explorer", STRAGGLER, silent_seconds=40.0)
    verdict = diagnose(snapshot(member("trainer", BATCH), lost))
    assert "waits for the explorer: none has been heard of (the last one 40 s ago)" in verdict.text


def test_waits_of_a_process_that_was_started_anew_count_no_more() -> None:
    before = member("explorer", STRAGGLER, silent_seconds=6.0)
    verdict = diagnose(snapshot(before, member("explorer"), member("trainer", BATCH)))
    assert verdict.state is DiagnosisState.WORKING


def test_runs_that_come_to_nothing_are_noted_with_their_commonest_reason() -> None:
    lost = {"num_recent_runs": 40, "recent_loss": "no reward", "refill_round": 2}
    lossy = WORK.model_copy(update={**lost, "num_recent_lost": 36})
    verdict = diagnose(snapshot(work=(lossy,)))
    (note,) = verdict.notes
    assert verdict.is_healthy and "36 of the last 40 runs" in note and "no reward" in note
    assert diagnose(snapshot(work=(WORK.model_copy(update=lost),))).notes == ()


def test_refused_results_are_noted_with_their_number_and_the_newest_reason() -> None:
    why = {"num_dead_letters": 3, "dead_letter_reason": "Experience.info: has 5,000,000 bytes"}
    refused = WORK.model_copy(update=why)
    verdict = diagnose(snapshot(work=(refused,)))
    (note,) = verdict.notes
    assert verdict.is_healthy and "refused 3 results of stage" in note
    assert "the newest because: Experience.info: has 5,000,000 bytes" in note
    assert diagnose(snapshot(work=(WORK,))).notes == ()


@pytest.mark.parametrize(
    ("state", "healthy"), [("finished", True), ("failed", False), ("cancelled", False)]
)
def test_an_experiment_that_has_ended_is_told_with_its_reason(state: str, healthy: bool) -> None:
    ended = ExperimentReport(label="p/run", state=state, reason="the model is gone")
    verdict = diagnose(snapshot(experiments=(ended,), work=()))
    assert verdict.is_healthy is healthy
    assert verdict.text == f"p/run is {state}: the model is gone."


def test_a_buffer_that_answers_here_and_not_the_trainer_is_cut_off_from_it() -> None:
    away = wait("trainer", "buffer", 8, "ping timeout", kind=WaitKind.NO_ANSWER)
    idle = wait("explorer", "buffer", 400, "explore step 13 needs weights version 12")
    verdict = diagnose(snapshot(member("trainer", BATCH, away), member("explorer", idle)))
    assert verdict.state is DiagnosisState.HELD
    assert verdict.text.startswith("The run waits for the buffer: the trainer has waited 8 s")
    assert "answers here: look at the network" in verdict.text


def test_an_explorer_that_gets_no_answer_from_the_buffer_is_cut_off_from_it() -> None:
    away = wait("explorer", "buffer", 8, "ping timeout", kind=WaitKind.NO_ANSWER)
    verdict = diagnose(snapshot(member("trainer", BATCH), member("explorer", away)))
    assert verdict.text.startswith("The run waits for the buffer: the explorer has waited 8 s")
    assert "answers here: look at the network" in verdict.text


def test_who_answers_here_and_is_not_heard_of_is_cut_off_from_the_synchronizer() -> None:
    unheard = member("explorer", silent_seconds=7.0, address="127.0.0.1:5000")
    verdict = diagnose(snapshot(member("trainer", BATCH), unheard))
    assert verdict.state is DiagnosisState.BROKEN
    assert "has not heard of the explorer for 7 s, and both answer here" in verdict.text


def test_a_buffer_that_is_not_heard_of_holds_nothing_and_is_told() -> None:
    unheard = member("buffer", silent_seconds=7.0, address="127.0.0.1:5000")
    verdict = diagnose(snapshot(unheard))
    assert verdict.state is DiagnosisState.WORKING
    assert "has not heard of the buffer for 7 s" in verdict.notes[0]


def test_a_synchronizer_that_was_away_itself_accuses_nobody() -> None:
    silent = [
        member(role, silent_seconds=7.0, address="127.0.0.1:5000")
        for role in ("trainer", "explorer", "buffer")
    ]
    assert diagnose(snapshot(*silent)).state is DiagnosisState.WORKING


def test_a_buffer_that_cannot_say_how_things_stand_is_told_of_with_what_it_waits_for() -> None:
    away = wait("buffer", "database", 4, "ping timeout", kind=WaitKind.NO_ANSWER)
    verdict = diagnose(snapshot(member("buffer", away), work=None, unanswered="Deadline Exceeded"))
    assert verdict.text.startswith("The run waits for the buffer, which is alive but cannot report")
    assert "the buffer has waited 4 s for Postgres" in verdict.text
    assert "Postgres answers here: look at the network" in verdict.text


def test_whose_turn_it_is_on_a_shared_device_is_told() -> None:
    turn = DeviceTurnReport(
        holder="explorer",
        process="process 7 of the engine on box",
        reason="to roll out",
        held_seconds=12.0,
        wishes=(DeviceWishReport(role="trainer", reason="to train step 3", waited_seconds=4.0),),
    )
    assert turn.text == (
        "the shared GPU is the explorer's turn since 12 s, to roll out (process 7 of the engine on "
        "box); the trainer has wanted it for 4 s, to train step 3"
    )
    running = EXPERIMENT.model_copy(update={"turn": turn})
    waiting = wait("trainer", "explorer", 4.0), wait("explorer", "workflow", 100.0)
    found = diagnose(
        snapshot(
            member("trainer", waiting[0]), member("explorer", waiting[1]), experiments=(running,)
        )
    )
    assert found.owner == "explorer", "the trainer waits for a run, in the end"
    assert turn.text[1:] in found.notes[0]
    assert DeviceTurnReport(held_seconds=3.0).text == "the shared GPU is free since 3 s"


def test_a_failing_loop_of_upkeep_is_noted_and_holds_up_nothing() -> None:
    failing = wait("buffer", "upkeep", 900.0, "retention: KeyError: 'number'")
    verdict = diagnose(snapshot(member("trainer", BATCH), member("buffer", failing)))
    assert verdict.state is DiagnosisState.WORKING
    [note] = [note for note in verdict.notes if "retention" in note]
    assert note.startswith("A loop of the buffer fails and is started again, with longer pauses")
    assert "KeyError: 'number'; its log is /run/log/buffer.log" in note


@pytest.mark.parametrize(
    ("experiment_id", "is_broken"), [("", True), ("e", True), ("other", False)]
)
def test_a_failing_loop_of_the_data_path_is_what_the_run_waits_for(
    experiment_id: str, is_broken: bool
) -> None:
    failing = wait("buffer", "data path", 1.0, "loop: KeyError: 'a'", experiment_id=experiment_id)
    verdict = diagnose(snapshot(member("trainer", BATCH), member("buffer", failing)))
    assert (verdict.state is DiagnosisState.BROKEN) is is_broken
    assert ("a loop of its data path fails" in verdict.text) is is_broken


def test_a_kind_of_a_newer_version_is_shown_as_its_part_gave_it() -> None:
    new = synchronizer_pb2.Wait(owner="trainer", waits_for="buffer", waited_seconds=9)
    new.MergeFromString(b"\x30\x4d")  # field 6: 77
    status = synchronizer_pb2.GetStatusResponse(
        members=[synchronizer_pb2.Member(role=synchronizer_pb2.ROLE_TRAINER, waits=[new])]
    )
    [told] = state_of(status, "").waits
    assert told.kind == "77 of a newer version"
    long = told.model_copy(update={"waited_seconds": 90.0})
    verdict = diagnose(snapshot(member("trainer", long), member("explorer", STRAGGLER)))
    assert "for the buffer (kind 77 of a newer version)" in verdict.text


def cause_with(*parts: ComponentSnapshot) -> str:
    return diagnose(with_parts(snapshot(), *parts)).cause


def test_who_was_slow_to_answer_comes_after_a_process_that_is_gone() -> None:
    assert cause_with(SILENT, GONE) == "explorer gone refuses"


def test_who_refuses_comes_before_a_process_that_died_of_it() -> None:
    refusing = part("postgres", condition=ProcessState.FOREIGN, reply=ProbeState.REFUSES)
    assert cause_with(refusing, GONE) == "postgres foreign refuses"


def test_where_all_processes_live_the_first_that_is_silent_is_named() -> None:
    refusing = part("buffer", reply=ProbeState.REFUSES)
    assert cause_with(SILENT, refusing) == "postgres running silent"


def busy(name: str, demand: CpuDemand, **changes: object) -> ComponentSnapshot:
    return part(name, reply=ProbeState.SILENT, asked_seconds=10.0, demand=demand, **changes)


def test_a_part_that_is_starved_is_said_to_live_and_what_else_takes_the_processors() -> None:
    now = with_parts(snapshot(work=None, unanswered=UNKNOWN), busy("buffer", STARVED))
    verdict = diagnose(now)
    assert verdict.state is DiagnosisState.HELD
    assert verdict.text.startswith(
        "The buffer lives and is slow to answer: in the 10 s that it was given, its process 100 "
        "worked for 0.4 s and waited for a processor for 8.1 s."
    )
    assert "more work than processors" in verdict.text
    assert "kill" not in verdict.text and "does not answer" not in verdict.text


def test_a_part_that_works_all_the_time_may_do_so_for_ever() -> None:
    now = with_parts(snapshot(work=None, unanswered=UNKNOWN), busy("buffer", AT_WORK))
    verdict = diagnose(now)
    assert "worked for 9.7 s" in verdict.text and "Ask again in a moment" in verdict.text
    assert "if this lasts, `kill -KILL 100` has it restarted" in verdict.text
    assert "/run/log/buffer.log" in verdict.text


def test_while_the_others_tell_how_things_stand_a_slow_part_is_a_note() -> None:
    verdict = diagnose(with_parts(snapshot(), busy("explorer", STARVED)))
    assert verdict.state is DiagnosisState.WORKING
    assert any("The explorer lives and is slow to answer" in note for note in verdict.notes)


def test_a_slow_part_does_not_stand_for_another_that_cannot_say_how_things_stand() -> None:
    now = with_parts(
        snapshot(work=None, unanswered="the database does not answer"), busy("explorer", STARVED)
    )
    verdict = diagnose(now)
    assert verdict.text.startswith("The run waits for the buffer, which is alive but cannot report")
    assert "the database does not answer" in verdict.text


def test_a_slow_part_hides_none_that_is_gone() -> None:
    now = with_parts(
        snapshot(members=None, work=None, unanswered=UNKNOWN),
        busy("postgres", STARVED),
        part("buffer", condition=ProcessState.GONE),
    )
    assert diagnose(now).text.startswith("The run waits for the buffer: its process 100 is gone")


def test_a_slow_part_that_nobody_has_heard_of_is_not_missed() -> None:
    from_explorer = snapshot()
    members = tuple(one for one in from_explorer.members or () if one.role != "explorer")
    verdict = diagnose(with_parts(snapshot(members=members), busy("explorer", STARVED)))
    assert verdict.text.startswith("The explorer lives and is slow to answer")


@pytest.mark.parametrize("demand", [CpuDemand(), CpuDemand(0.1, 0.2)])
def test_a_part_that_has_no_work_and_says_nothing_hangs(demand: CpuDemand) -> None:
    verdict = diagnose(with_parts(snapshot(), busy("buffer", demand)))
    assert verdict.state is DiagnosisState.BROKEN
    assert "takes connections and does not answer" in verdict.text


def test_a_full_disk_is_the_cause_of_what_waits_for_the_broker() -> None:
    buffer = member("buffer", wait("buffer", "broker", 40.0, kind=WaitKind.NO_ANSWER))
    trainer = member("trainer", wait("trainer", "buffer", 41.0, kind=WaitKind.NO_ANSWER))
    verdict = diagnose(snapshot(trainer, buffer, full_disk=FOLDER))
    assert "What is seen of it: The run waits for the broker" in verdict.text
    assert (verdict.state, verdict.cause) == (DiagnosisState.BROKEN, "disk full")
    assert verdict.text.startswith(f"The disk of {FOLDER} is full: make room there.")


def test_a_full_disk_is_the_cause_of_a_database_that_is_gone() -> None:
    parts = (
        part("postgres", condition=ProcessState.GONE, last_log_line="No space left on device"),
    )
    verdict = diagnose(snapshot(parts=parts, full_disk=FOLDER))
    assert verdict.cause == "disk full"
    assert "What is seen of it: " in verdict.text


def test_a_run_that_still_gets_on_is_warned() -> None:
    verdict = diagnose(snapshot(full_disk=FOLDER))
    assert verdict.state is DiagnosisState.WORKING
    assert verdict.notes == (f"The disk of {FOLDER} is full: make room there.",)


@pytest.mark.parametrize(("free", "full"), [(0, True), (2**20, True), (2**30, False)])
def test_a_disk_is_full_when_next_to_nothing_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, full: bool
) -> None:
    usage = type(shutil.disk_usage(tmp_path))(2**40, 2**40 - free, free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert gather.is_disk_full(tmp_path) is full


def test_a_directory_that_is_gone_is_no_full_disk(tmp_path: Path) -> None:
    assert not gather.is_disk_full(tmp_path / "gone")


def test_a_broker_that_refuses_is_not_looked_for_on_the_network() -> None:
    trainer = member("trainer", wait("trainer", "buffer", 41.0, kind=WaitKind.NO_ANSWER))
    for kind in (WaitKind.STATE, WaitKind.NO_ANSWER):
        buffer = member("buffer", wait("buffer", "broker", 40.0, "its disk is full", kind=kind))
        told = diagnose(snapshot(trainer, buffer)).text
        assert "its disk is full" in told
        assert ("network" in told) is (kind is WaitKind.NO_ANSWER)
