"""The life of an experiment, seen by a client."""

import asyncio
import json

import grpc
import pytest

from services.synchronizer import operations
from tests.integration.synchronizer.builders import (
    BOTH,
    TRAIN,
    TWO_STAGES,
    creation,
    failure,
    finished,
    plan,
    weights,
)
from tests.integration.synchronizer.conftest import TIMEOUT, Running
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.run.launch.stored_runs import find_experiment


def stage_states(experiment: pb.Experiment) -> list[str]:
    return [pb.StageState.Name(stage.state)[12:] for stage in experiment.stages]


async def finish_warmup(synchronizer: Running, experiment_id: str) -> None:
    request = finished(experiment_id, "warmup", pb.ROLE_TRAINER, weights("warmup", 5))
    await synchronizer.stub.FinishRole(request, timeout=TIMEOUT)


async def cancel(synchronizer: Running, experiment_id: str) -> None:
    request = pb.CancelExperimentRequest(experiment_id=experiment_id, reason="Ctrl-C")
    await synchronizer.stub.CancelExperiment(request, timeout=TIMEOUT)


async def test_a_new_experiment_runs_its_first_stage(synchronizer: Running) -> None:
    answer = await synchronizer.created()
    assert not answer.resumed
    assert answer.experiment.state == pb.EXPERIMENT_STATE_RUNNING
    assert answer.experiment.start_count == 1
    assert stage_states(answer.experiment) == ["RUNNING", "PENDING"]
    assert list(answer.experiment.stages[1].roles) == [pb.ROLE_TRAINER, pb.ROLE_EXPLORER]
    assert await synchronizer.experiment(answer.experiment.id) == answer.experiment


async def test_creating_a_running_experiment_again_resumes_it(synchronizer: Running) -> None:
    first = await synchronizer.created()
    second = await synchronizer.created()
    assert second.resumed
    assert second.experiment.id == first.experiment.id
    assert second.experiment.start_count == 2
    assert stage_states(second.experiment) == ["RUNNING", "PENDING"]


async def test_creating_at_the_same_time_makes_one_experiment(
    synchronizer: Running, replica: Running
) -> None:
    answers = await asyncio.gather(*(s.created() for s in (synchronizer, replica) * 4))
    assert len({answer.experiment.id for answer in answers}) == 1
    assert sorted(answer.experiment.start_count for answer in answers) == list(range(1, 9))
    assert sum(not answer.resumed for answer in answers) == 1


async def followed(synchronizer: Running, plan_json: str = TWO_STAGES) -> pb.Experiment:
    """As who only follows asks for it."""
    request = creation(plan_json)
    request.keep_running = True
    return (await synchronizer.created(request)).experiment


async def test_who_only_follows_starts_nothing_anew(
    synchronizer: Running, replica: Running
) -> None:
    answers = await asyncio.gather(*(followed(s) for s in (synchronizer, replica) * 4))
    assert len({answer.id for answer in answers}) == 1
    assert {answer.start_count for answer in answers} == {1}
    in_other_words = json.dumps(json.loads(TWO_STAGES), indent=2)
    assert (await followed(synchronizer, in_other_words)).start_count == 1


async def test_who_follows_by_another_plan_starts_it_with_that(synchronizer: Running) -> None:
    await followed(synchronizer)
    assert (await followed(synchronizer, plan(warmup=BOTH, rft=TRAIN))).start_count == 2


async def test_who_follows_lets_a_cancelled_one_go_on(synchronizer: Running) -> None:
    experiment_id = (await followed(synchronizer)).id
    await cancel(synchronizer, experiment_id)
    assert stage_states(await followed(synchronizer)) == ["RUNNING", "PENDING"]


async def test_a_resumed_experiment_keeps_the_threads_that_it_began_with(
    synchronizer: Running,
) -> None:
    first = await synchronizer.created()
    newer = json.loads(TWO_STAGES)
    for stage in newer["stages"]:
        stage |= {"num_threads": 2, "mode": "train"}
    await synchronizer.created(creation(json.dumps(newer)))
    request = pb.GetExperimentRequest(experiment_id=first.experiment.id)
    found = await synchronizer.stub.GetExperiment(request, timeout=TIMEOUT)
    for stage in json.loads(found.plan_json)["stages"]:
        assert stage["mode"] == "train"
        assert "num_threads" not in stage
    other = await synchronizer.created(creation(json.dumps(newer), label="project/other"))
    request = pb.GetExperimentRequest(experiment_id=other.experiment.id)
    found = await synchronizer.stub.GetExperiment(request, timeout=TIMEOUT)
    assert json.loads(found.plan_json) == newer


async def test_tenants_do_not_share_labels(synchronizer: Running) -> None:
    ours = await synchronizer.created(creation(tenant="ours"))
    theirs = await synchronizer.created(creation(tenant="theirs"))
    assert ours.experiment.id != theirs.experiment.id
    assert not theirs.resumed


async def test_a_failed_experiment_goes_on_with_the_stage_that_failed(
    synchronizer: Running,
) -> None:
    experiment_id = (await synchronizer.created()).experiment.id
    await finish_warmup(synchronizer, experiment_id)
    request = failure(experiment_id, "rft", "no memory left")
    await synchronizer.stub.FailStage(request, timeout=TIMEOUT)
    failed = await synchronizer.experiment(experiment_id)
    assert failed.state == pb.EXPERIMENT_STATE_FAILED
    assert failed.reason == "no memory left"
    assert stage_states(failed) == ["FINISHED", "FAILED"]

    resumed = (await synchronizer.created()).experiment
    assert resumed.state == pb.EXPERIMENT_STATE_RUNNING
    assert resumed.reason == ""
    assert stage_states(resumed) == ["FINISHED", "RUNNING"]
    assert resumed.stages[0].final_version == weights("warmup", 5)


async def test_a_cancelled_experiment_can_be_resumed(synchronizer: Running) -> None:
    experiment_id = (await synchronizer.created()).experiment.id
    await cancel(synchronizer, experiment_id)
    cancelled = await synchronizer.experiment(experiment_id)
    assert (cancelled.state, cancelled.reason) == (pb.EXPERIMENT_STATE_CANCELLED, "Ctrl-C")
    resumed = (await synchronizer.created()).experiment
    assert stage_states(resumed) == ["RUNNING", "PENDING"]


async def test_a_role_that_finished_stays_finished_when_resumed(synchronizer: Running) -> None:
    experiment_id = (await synchronizer.created()).experiment.id
    await finish_warmup(synchronizer, experiment_id)
    await cancel(synchronizer, experiment_id)
    late = finished(experiment_id, "rft", pb.ROLE_TRAINER, weights("rft", 9))
    answer = await synchronizer.stub.FinishRole(late, timeout=TIMEOUT)
    assert answer.state == pb.STAGE_STATE_FAILED
    resumed = (await synchronizer.created()).experiment
    assert list(resumed.stages[1].finished_roles) == [pb.ROLE_TRAINER]
    assert stage_states(resumed) == ["FINISHED", "RUNNING"]


async def test_a_finished_experiment_is_answered_as_finished(synchronizer: Running) -> None:
    request = creation(plan(warmup=TRAIN))
    experiment_id = (await synchronizer.created(request)).experiment.id
    await finish_warmup(synchronizer, experiment_id)
    again = await synchronizer.created(request)
    assert again.resumed
    assert again.experiment.state == pb.EXPERIMENT_STATE_FINISHED
    assert again.experiment.start_count == 1


async def test_the_plan_is_replaced_when_the_stages_agree(synchronizer: Running) -> None:
    experiment_id = (await synchronizer.created()).experiment.id
    changed = plan(warmup=BOTH, rft=TRAIN)
    resumed = (await synchronizer.created(creation(changed))).experiment
    assert list(resumed.stages[0].roles) == [pb.ROLE_TRAINER, pb.ROLE_EXPLORER]
    request = pb.GetExperimentRequest(experiment_id=experiment_id)
    answer = await synchronizer.stub.GetExperiment(request, timeout=TIMEOUT)
    assert answer.plan_json == changed


async def test_a_plan_with_other_stages_is_refused_and_changes_nothing(
    synchronizer: Running,
) -> None:
    before = (await synchronizer.created()).experiment
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await synchronizer.created(creation(plan(warmup=TRAIN, dpo=TRAIN)))
    assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "warmup, rft" in (refusal.value.details() or "")
    assert await synchronizer.experiment(before.id) == before


async def test_the_first_reason_of_a_failure_stays(synchronizer: Running) -> None:
    experiment_id = (await synchronizer.created()).experiment.id
    for reason in ("the disk is full", "the trainer is gone"):
        request = failure(experiment_id, "warmup", reason)
        await synchronizer.stub.FailStage(request, timeout=TIMEOUT)
    await cancel(synchronizer, experiment_id)
    experiment = await synchronizer.experiment(experiment_id)
    assert experiment.state == pb.EXPERIMENT_STATE_FAILED
    assert experiment.reason == "the disk is full"


async def test_a_failure_reported_after_the_stage_ended_changes_nothing(
    synchronizer: Running,
) -> None:
    experiment_id = (await synchronizer.created()).experiment.id
    await finish_warmup(synchronizer, experiment_id)
    request = failure(experiment_id, "warmup", "too late")
    await synchronizer.stub.FailStage(request, timeout=TIMEOUT)
    experiment = await synchronizer.experiment(experiment_id)
    assert experiment.state == pb.EXPERIMENT_STATE_RUNNING


async def test_status_lists_experiments_newest_first(synchronizer: Running) -> None:
    labels = ["project/a", "project/b", "project/c"]
    for label in labels:
        await synchronizer.created(creation(label=label))
    status = await synchronizer.stub.GetStatus(pb.GetStatusRequest(), timeout=TIMEOUT)
    assert [experiment.label for experiment in status.experiments] == labels[::-1]


async def test_an_experiment_is_found_by_its_label_behind_many_newer_ones(
    synchronizer: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "MAX_EXPERIMENTS_LISTED", 2)
    for label in ("project/old", "project/b", "project/c"):
        await synchronizer.created(creation(label=label))
    assert await find_experiment(synchronizer.stub, "default", "project/old") is not None
    assert await find_experiment(synchronizer.stub, "default", "project/ol") is None
    assert await find_experiment(synchronizer.stub, "other", "project/old") is None


async def test_whose_turn_it_is_on_a_shared_device_is_told_to_all(synchronizer: Running) -> None:
    created = (await synchronizer.created()).experiment
    assert not created.HasField("turn")
    request = pb.WatchExperimentRequest(experiment_id=created.id)
    watch = synchronizer.stub.WatchExperiment(request, timeout=TIMEOUT)
    assert not (await watch.read()).experiment.HasField("turn")
    held, wanted = pb.RecordTurnRequest.STATE_HELD, pb.RecordTurnRequest.STATE_WANTED
    for role, state in ((pb.ROLE_EXPLORER, held), (pb.ROLE_TRAINER, wanted)):
        report = pb.RecordTurnRequest(
            experiment_id=created.id,
            role=role,
            state=state,
            process="process 7",
            reason="to work",
            sequence=1,
        )
        for _ in range(2):
            await synchronizer.stub.RecordTurn(report, timeout=TIMEOUT)
        turn = (await watch.read()).experiment.turn
        assert (turn.holder, turn.process, turn.reason) == (
            pb.ROLE_EXPLORER,
            "process 7",
            "to work",
        )
    assert [wish.role for wish in turn.wishes] == [pb.ROLE_TRAINER]
    watch.cancel()
    status = await synchronizer.stub.GetStatus(pb.GetStatusRequest(), timeout=TIMEOUT)
    assert [wish.reason for wish in status.experiments[0].turn.wishes] == ["to work"]


async def test_a_wish_that_comes_late_does_not_keep_the_engine_waiting(
    synchronizer: Running,
) -> None:
    """The first try of a call that was repeated may be served last of all."""
    created = (await synchronizer.created()).experiment
    wanted, held, released = (
        pb.RecordTurnRequest(
            experiment_id=created.id,
            role=pb.ROLE_TRAINER,
            state=state,
            reason="to train step 1",
            sequence=sequence,
            clock="this start",
        )
        for sequence, state in enumerate(
            (
                pb.RecordTurnRequest.STATE_WANTED,
                pb.RecordTurnRequest.STATE_HELD,
                pb.RecordTurnRequest.STATE_RELEASED,
            ),
            start=1,
        )
    )
    for report in (wanted, held, released, wanted):
        await synchronizer.stub.RecordTurn(report, timeout=TIMEOUT)
    turn = (await synchronizer.experiment(created.id)).turn
    assert (turn.holder, list(turn.wishes)) == (pb.ROLE_UNSPECIFIED, [])
    wanted.sequence = 4
    await synchronizer.stub.RecordTurn(wanted, timeout=TIMEOUT)
    wishes = (await synchronizer.experiment(created.id)).turn.wishes
    assert [wish.role for wish in wishes] == [pb.ROLE_TRAINER]
