"""Runs go on with changed files: more steps, other rates, other memory; real services, no model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Unpack

import pytest
from pydantic import JsonValue

from tests.support.model_free.experiment import (
    Sections,
    experiment_plan,
    final_weights,
    run_to_end,
    start_experiment,
)
from tests.support.model_free.shared_stack import ON_IT, SharedStack
from trinity.api.v1 import buffer_pb2, buffer_pb2_grpc, query_pb2, query_pb2_grpc
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import UserError
from trinity.inspect.tables import step_header
from trinity.run.deploy.submission import ExperimentSubmission
from trinity.runtime.rpc.channel import open_channel

pytestmark = [ON_IT, pytest.mark.timeout(600)]

RATE = "algorithm.optimizer.lr"


async def ended(stack: SharedStack, plan: ExperimentPlan) -> pb.Experiment:
    run = await run_to_end(stack.synchronizer, plan)
    assert run.state == pb.EXPERIMENT_STATE_FINISHED, run.reason
    return run


def planned(
    root: Path,
    name: str,
    steps: int,
    of_buffer: Mapping[str, JsonValue] = {},
    **changes: Unpack[Sections],
) -> ExperimentPlan:
    changes["buffer"] = {**of_buffer, "total_steps": steps}
    return experiment_plan(root, name=name, **changes)


async def changes_of(stack: SharedStack, run: pb.Experiment) -> list[buffer_pb2.SettingChange]:
    """The changed settings in the run's events."""
    last = run.stages[-1].final_version.version
    events = await events_until_step(stack, run, last)
    return [change for event in events for change in event.changed.changes]


async def events_until_step(
    stack: SharedStack, run: pb.Experiment, step: int
) -> list[buffer_pb2.ProgressEvent]:
    """The events of a run until a step is trained."""
    async with open_channel(stack.buffer) as channel:
        stub: buffer_pb2_grpc.BufferServiceStub = buffer_pb2_grpc.BufferServiceStub(channel)
        request = buffer_pb2.WatchProgressRequest(tenant=run.tenant, experiment_id=run.id)
        found: list[buffer_pb2.ProgressEvent] = []
        async for answer in stub.WatchProgress(request):
            found += answer.events
            if any(event.step.step >= step for event in found):
                break
        return found


async def head_of(stack: SharedStack, run: pb.Experiment, step: int) -> query_pb2.StepHead:
    key = buffer_pb2.StageKey(tenant=run.tenant, experiment_id=run.id, stage="rft")
    async with open_channel(stack.buffer) as channel:
        stub: query_pb2_grpc.QueryServiceStub = query_pb2_grpc.QueryServiceStub(channel)
        async for answer in stub.GetStep(query_pb2.GetStepRequest(key=key, step=step)):
            head: query_pb2.StepHead = answer.head
            return head
    raise AssertionError("no answer")


async def test_a_finished_run_with_more_steps_is_as_if_it_had_them_from_the_start(
    tmp_path: Path, shared_stack: SharedStack, calm_weights: str
) -> None:
    short = await ended(shared_stack, planned(tmp_path, "longer", 5))
    assert short.stages[-1].final_version.version == 5
    long = await ended(shared_stack, planned(tmp_path, "longer", 8))
    assert long.id == short.id
    assert long.stages[-1].final_version.version == 8
    assert final_weights(long) == calm_weights
    again = await start_experiment(shared_stack.synchronizer, planned(tmp_path, "longer", 8))
    assert again.state == pb.EXPERIMENT_STATE_FINISHED, "the same file has nothing more to do"
    assert again.start_count == long.start_count
    fewer = await start_experiment(shared_stack.synchronizer, planned(tmp_path, "longer", 6))
    assert fewer.state == pb.EXPERIMENT_STATE_FINISHED


async def test_batches_that_do_not_end_with_explore_steps_go_on_too(
    tmp_path: Path, shared_stack: SharedStack
) -> None:
    """The last batch of the first part is a short one, which stays as it is recorded."""
    buffer: Mapping[str, JsonValue] = {"train_batch_size": 6}
    ahead: Sections = {"synchronizer": {"sync_interval": 2, "sync_offset": 1}}
    first = planned(tmp_path, "uneven", 4, buffer, **ahead)
    short = await ended(shared_stack, first)
    assert short.stages[-1].final_version.version == 6
    recorded = (await head_of(shared_stack, short, 6)).num_rows
    assert recorded == 2
    long = await ended(shared_stack, planned(tmp_path, "uneven", 8, buffer, **ahead))
    assert long.stages[-1].final_version.version == 11
    assert (await head_of(shared_stack, long, 6)).num_rows == recorded
    rows = [(await head_of(shared_stack, long, step)).num_rows for step in range(7, 12)]
    assert rows[:4] == [6, 6, 6, 6]


async def test_exploring_goes_on(tmp_path: Path, shared_stack: SharedStack) -> None:
    explores: Sections = {"stages": [{"stage_name": "rft", "mode": "explore"}]}
    first = await ended(shared_stack, planned(tmp_path, "explores", 2, **explores))
    more = await ended(shared_stack, planned(tmp_path, "explores", 4, **explores))
    assert more.id == first.id
    async with open_channel(shared_stack.buffer) as channel:
        stub: query_pb2_grpc.QueryServiceStub = query_pb2_grpc.QueryServiceStub(channel)
        request = query_pb2.ListStagesRequest(tenant=more.tenant, experiment_id=more.id)
        [stage] = (await stub.ListStages(request)).stages
    assert stage.state == "finished"
    assert sum(count.count for count in stage.counts) == 4 * 4 * 2


async def test_another_rate_is_recorded_with_its_first_step(
    tmp_path: Path, shared_stack: SharedStack, calm_weights: str
) -> None:
    first = planned(tmp_path, "rate", 4)
    submission = ExperimentSubmission(
        plan=first, synchronizer=shared_stack.synchronizer, buffer=shared_stack.buffer
    )
    await submission.submit_and_follow()
    changed = experiment_plan(
        tmp_path,
        name="rate",
        algorithm={"algorithm_type": "grpo", "optimizer": {"lr": 0.5}},
        buffer={"total_steps": 8},
    )
    refused = ExperimentSubmission(
        plan=changed,
        synchronizer=shared_stack.synchronizer,
        buffer=shared_stack.buffer,
        accept_command="trinity deploy submit --accept-changes",
    )
    with pytest.raises(UserError, match=r"optimizer\.lr: 0\.5` \(1e-06 before\).*--accept-changes"):
        await refused.submit_and_follow()
    impossible = planned(tmp_path, "rate", 8, {"batch_size": 2})
    with pytest.raises(UserError, match=r"buffer\.batch_size: 2` \(4 before\) is impossible"):
        await ExperimentSubmission(
            plan=impossible,
            synchronizer=shared_stack.synchronizer,
            buffer=shared_stack.buffer,
            accepts_changes=True,
        ).submit_and_follow()
    accepted = ExperimentSubmission(
        plan=changed,
        synchronizer=shared_stack.synchronizer,
        buffer=shared_stack.buffer,
        accepts_changes=True,
    )
    await accepted.submit_and_follow()
    run = await start_experiment(shared_stack.synchronizer, changed)
    assert final_weights(run) != calm_weights
    [change] = await changes_of(shared_stack, run)
    assert (change.key, change.before, change.now) == (RATE, "1e-06", "0.5")
    assert (change.from_step, change.only_rounds) == (5, False)
    before, after = [await head_of(shared_stack, run, step) for step in (4, 5)]
    assert not before.changes
    assert f"changed {RATE}: 1e-06 -> 0.5 from step 5" in step_header("rft", after)


async def test_other_memory_is_free_and_said_to_round(
    tmp_path: Path, shared_stack: SharedStack, calm_weights: str
) -> None:
    """The run is stopped in between; what it computes here is the same in any memory."""
    plan = experiment_plan(tmp_path, name="memory", buffer={"total_steps": 8})
    started = await start_experiment(shared_stack.synchronizer, plan)
    async with open_channel(shared_stack.synchronizer) as channel:
        stub: SynchronizerServiceStub = SynchronizerServiceStub(channel)
        await events_until_step(shared_stack, started, 2)
        request = pb.CancelExperimentRequest(experiment_id=started.id, reason="less memory")
        await stub.CancelExperiment(request)
    engine: JsonValue = {"gpu_memory_utilization": 0.4, "extra_engine_args": {"max_num_seqs": 2}}
    less = experiment_plan(
        tmp_path,
        name="memory",
        buffer={"total_steps": 8},
        explorer={"rollout_model": engine},
        trainer={"enable_gradient_checkpointing": True, "max_token_len_per_gpu": 200},
    )
    run = await ended(shared_stack, less)
    assert final_weights(run) == calm_weights
    changes = {change.key: change for change in await changes_of(shared_stack, run)}
    assert set(changes) == {
        "explorer.rollout_model.gpu_memory_utilization",
        "explorer.rollout_model.extra_engine_args.max_num_seqs",
        "trainer.max_token_len_per_gpu",
    }
    assert all(change.only_rounds for change in changes.values())
