"""What `trinity status` shows on a terminal of the usual width."""

import pytest
from rich.console import Console
from rich.errors import MarkupError

from tests.unit.progress.builders import changed
from trinity.api.v1 import buffer_pb2, query_pb2, synchronizer_pb2
from trinity.cli import status
from trinity.cli.status import (
    changed_lines,
    left_out_lines,
    member_table,
    refused_lines,
)
from trinity.run.reports import label_stages
from trinity.run.state import state_of


def test_addresses_are_whole_on_a_narrow_terminal() -> None:
    member = synchronizer_pb2.Member(
        role=synchronizer_pb2.ROLE_TRAINER,
        address="127.0.0.1:25123",
        stage="sft_warmup",
        activity="loading the model of a stage",
        version=30,
        silent_seconds=1.0,
    )
    console = Console(width=80)
    with console.capture() as shown:
        status_now = synchronizer_pb2.GetStatusResponse(members=[member])
        console.print(member_table(state_of(status_now, "")))
    assert member.address in shown.get()


def test_stages_of_several_experiments_are_told_apart() -> None:
    experiments = [
        synchronizer_pb2.Experiment(id="a", label="sums/first"),
        synchronizer_pb2.Experiment(id="b", label="sums/second"),
    ]
    keys = [buffer_pb2.StageKey(experiment_id=one.id, stage="rft") for one in experiments]
    work = buffer_pb2.GetBufferStatusResponse(
        stages=[buffer_pb2.StageStatus(key=key) for key in keys]
    )
    now = synchronizer_pb2.GetStatusResponse(experiments=experiments)
    named = label_stages(state_of(now, work)).work or ()
    assert [one.stage for one in named] == ["sums/first rft", "sums/second rft"]
    alone = buffer_pb2.GetBufferStatusResponse(stages=work.stages[:1])
    assert [one.stage for one in label_stages(state_of(now, alone)).work or ()] == ["rft"]


def test_what_did_not_fit_and_what_was_refused_is_told() -> None:
    stage = buffer_pb2.StageStatus(
        key=buffer_pb2.StageKey(stage="rft"),
        num_dead_letters=1_200,
        dead_letter_reason="Experience.info: has 5,000,000 bytes",
    )
    work = buffer_pb2.GetBufferStatusResponse(stages=[stage], num_stages_left_out=2)
    now = synchronizer_pb2.GetStatusResponse(num_members_left_out=30, num_experiments_left_out=1)
    state = state_of(now, work)
    assert list(left_out_lines(state)) == [
        "1 more experiments are not shown\n",
        "30 more members are not shown\n",
        "2 more stages are not shown\n",
    ]
    [line] = refused_lines(state.work or ())
    assert line.startswith("rft: 1,200 results were refused") and "Experience.info: has" in line


def test_nothing_is_told_where_all_fits() -> None:
    """The control."""
    work = buffer_pb2.GetBufferStatusResponse(stages=[buffer_pb2.StageStatus()])
    state = state_of(synchronizer_pb2.GetStatusResponse(), work)
    assert not list(left_out_lines(state))
    assert not list(refused_lines(state.work or ()))


HOSTILE = "[/b] [link=file:///etc/passwd]here[/link] [on red]"
"""Markup of rich, which ends a program that prints it or changes what others said."""


def test_texts_of_members_are_shown_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wait = synchronizer_pb2.Wait(owner=HOSTILE, waits_for=HOSTILE, reason=HOSTILE)
    member = synchronizer_pb2.Member(
        role=synchronizer_pb2.ROLE_EXPLORER,
        address=HOSTILE,
        stage=HOSTILE,
        activity=HOSTILE,
        waits=[wait],
    )
    experiment = synchronizer_pb2.Experiment(
        label=HOSTILE, reason=HOSTILE, stages=[synchronizer_pb2.Stage(name=HOSTILE)]
    )
    stage = buffer_pb2.StageStatus(
        key=buffer_pb2.StageKey(stage=HOSTILE),
        num_dead_letters=1,
        dead_letter_reason=HOSTILE,
        replay=buffer_pb2.ReplayStatus(num_trained=1),
        num_refill_tasks=1,
        num_recent_runs=1,
    )
    monkeypatch.setenv("COLUMNS", "1000")
    state = state_of(
        synchronizer_pb2.GetStatusResponse(experiments=[experiment], members=[member]),
        buffer_pb2.GetBufferStatusResponse(stages=[stage]),
    )
    populations = [query_pb2.GetPopulationResponse(last_explore_step=1)]
    status._show(state, populations)
    shown = capsys.readouterr().out
    assert shown.count(HOSTILE) == 15 and "\x1b" not in shown


def test_markup_that_is_not_escaped_ends_a_program() -> None:
    """The control."""
    with pytest.raises(MarkupError):
        Console().print(HOSTILE)


def test_changed_settings_are_lines_of_their_stage() -> None:
    event = changed(1, "rft", 4).changed
    stage = buffer_pb2.StageStatus(key=buffer_pb2.StageKey(stage="rft"), changes=event.changes)
    work = buffer_pb2.GetBufferStatusResponse(stages=[stage])
    first, second = changed_lines(state_of("", work).work or ())
    assert first == "rft: changed algorithm.optimizer.lr: 1e-06 -> 0.5 from step 4\n"
    assert second.endswith("which may round differently\n")
