"""An experiment over a stack without a model, and when its train steps were reported."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from pydantic import JsonValue

from tests.support.model_free.engine import RUN_SECONDS_VARIABLE, SPREAD_VARIABLE
from tests.support.model_free.experiment import (
    experiment_plan,
    start_experiment,
    wait_until_ended,
)
from tests.support.model_free.learner import STEP_SECONDS_VARIABLE
from tests.support.model_free.stack import model_free_stack
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.security.credentials import Credentials

STEP_TASKS, REPEATS = 32, 8
STEP_RUNS = STEP_TASKS * REPEATS


ONE_AHEAD: dict[str, JsonValue] = {"sync_interval": 1, "sync_offset": 1}


def steady_plan(
    root: Path,
    num_steps: int,
    synchronizer: Mapping[str, JsonValue] = ONE_AHEAD,
    **explorer: JsonValue,
) -> ExperimentPlan:
    """Steps of 32 tasks with eight runs each, rolled out while the step before is trained."""
    return experiment_plan(
        root,
        num_tasks=STEP_TASKS * num_steps,
        algorithm={"algorithm_type": "grpo", "repeat_times": REPEATS},
        buffer={"total_steps": num_steps, "batch_size": STEP_TASKS},
        synchronizer=dict(synchronizer),
        explorer={"runner_per_model": 64, **explorer},
        trainer={"save_interval": 0},
    )


async def events_of(
    plan: ExperimentPlan,
    *,
    run_seconds: float = 0.0,
    step_seconds: float = 0.0,
    spreads_runs: bool = False,
) -> list[pb.ProgressEvent]:
    """All progress events of the experiment, run to its end with simulated durations.

    With `spreads_runs` a generation takes from 0 to twice `run_seconds`, else all take the same.
    """
    spread = str(int(spreads_runs))
    environment = {
        "explorer": {RUN_SECONDS_VARIABLE: str(run_seconds), SPREAD_VARIABLE: spread},
        "trainer": {STEP_SECONDS_VARIABLE: str(step_seconds)},
    }
    async with model_free_stack(plan.job_path, environment=environment) as stack:
        experiment = await start_experiment(stack.addresses.synchronizer, plan)
        ended = await wait_until_ended(stack.addresses.synchronizer, experiment.id)
        if ended.reason:
            raise RuntimeError(f"{ended.reason}; see {Path(plan.job_dir) / 'log'}")
        return await read_events(stack.addresses.buffer, plan, experiment.id)


async def read_events(
    buffer: str,
    plan: ExperimentPlan,
    experiment_id: str,
    security: Credentials | None = None,
) -> list[pb.ProgressEvent]:
    """Reads the events until the last train step."""
    total = plan.stages[-1].total_train_steps
    request = pb.WatchProgressRequest(tenant=plan.tenant, experiment_id=experiment_id)
    events: list[pb.ProgressEvent] = []
    async with open_channel(buffer, security) as channel:
        async for answer in BufferServiceStub(channel).WatchProgress(request):
            events += answer.events
            if any(event.step.step == total for event in events):
                return events
    raise RuntimeError("the buffer ended the stream of events")


def step_times(events: list[pb.ProgressEvent]) -> list[float]:
    """Unix seconds at which train steps were reported."""
    return [event.unix_millis / 1000 for event in events if event.HasField("step")]


def step_gaps(events: list[pb.ProgressEvent]) -> list[float]:
    """Seconds between the reports of neighbouring train steps."""
    return [after - before for before, after in pairwise(step_times(events))]
