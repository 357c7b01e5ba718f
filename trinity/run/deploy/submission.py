"""Starts an experiment on running services, and follows it to its end."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from pydantic import ValidationError

from trinity.api.v1 import (
    buffer_pb2_grpc,
    query_pb2_grpc,
    synchronizer_pb2,
    synchronizer_pb2_grpc,
)
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.config.changes.plans import compare_plans
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import RunFailed, ServiceNotReady, TrinityError, UserError
from trinity.run.launch.content import ContentRecord
from trinity.run.launch.follow import FINISHED, ExperimentFollower, watched
from trinity.run.launch.modes import is_bench, is_serve, started_data_juicer
from trinity.run.launch.resume import check_changes
from trinity.run.launch.stored_runs import find_experiment, with_source_runs
from trinity.run.progress.reporter import Reporter, make_reporter
from trinity.run.progress.view import RunView
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.errors import answer_of, error_of
from trinity.runtime.rpc.limits import CALL_SECONDS
from trinity.runtime.security.credentials import Credentials

START_SECONDS = 120.0
"""Time that the services may take to answer."""
ENDED = {
    pb.EXPERIMENT_STATE_FINISHED: "has finished",
    pb.EXPERIMENT_STATE_FAILED: "has failed",
    pb.EXPERIMENT_STATE_CANCELLED: "was cancelled before",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSubmission:
    """A plan, and the services that run it."""

    plan: ExperimentPlan
    synchronizer: str
    buffer: str
    monitor: Path | None = None
    """Folder of the monitor that is fed from here; without it no monitor is fed."""
    accepts_changes: bool = False
    """True to go on with a plan whose changes make it another experiment."""
    accept_command: str = ""
    """The command that accepts them, for messages."""
    security: Credentials | None = None
    """Of the calls; None for those of the environment."""
    answer_seconds: float = field(default_factory=lambda: START_SECONDS)
    """Time that the services may take to answer."""

    async def submit(self, say: Callable[[str], None]) -> synchronizer_pb2.Experiment:
        """Starts or resumes the experiment of the plan's label, or joins a running one.

        Raises: TrinityError; ServiceNotReady when no service answers.
        """
        async with open_channel(self.synchronizer, self.security) as channel:
            return await self._create(SynchronizerServiceStub(channel), say)

    async def submit_and_follow(self) -> None:
        """Starts or resumes the experiment of the plan's label, or joins a running one; follows it.

        Raises: RunFailed when it ends otherwise than finished; ServiceNotReady when no service
        answers.
        """
        reporter = make_reporter(self.plan.label)
        try:
            ended = await answer_of(self._follow(reporter))
        finally:
            reporter.close()
        if ended.state != FINISHED:
            raise RunFailed(f"{self.plan.label} did not finish: {ended.reason}")

    async def _follow(self, reporter: Reporter) -> synchronizer_pb2.Experiment:
        async with (
            open_channel(self.synchronizer, self.security) as to_synchronizer,
            open_channel(self.buffer, self.security) as to_buffer,
        ):
            synchronizer = synchronizer_pb2_grpc.SynchronizerServiceStub(to_synchronizer)
            buffer: buffer_pb2_grpc.BufferServiceStub = buffer_pb2_grpc.BufferServiceStub(to_buffer)
            follower = ExperimentFollower(
                experiment=await self._create(synchronizer, reporter.print_line),
                buffer=buffer,
                synchronizer=synchronizer,
                view=RunView.from_plan(self.plan),
                reporter=reporter,
                on_stage=lambda _: None,
            )
            if self.monitor is None:
                return await follower.until_ended()
            experiment_id = follower.experiment.id
            queries: query_pb2_grpc.QueryServiceStub = query_pb2_grpc.QueryServiceStub(to_buffer)
            async with watched(
                self.plan, experiment_id, buffer, reporter, self.monitor, queries=queries
            ) as monitor:
                ended = await follower.until_ended()
                await monitor.catch_up(follower.view.last_event)
                return ended

    async def _create(
        self,
        synchronizer: synchronizer_pb2_grpc.SynchronizerServiceStub,
        say: Callable[[str], None],
    ) -> synchronizer_pb2.Experiment:
        say(f"asking the synchronizer at {self.synchronizer} to take {self.plan.label}")
        try:
            await self._check_changes(synchronizer, say)
            plan = await with_source_runs(synchronizer, self.plan, self.answer_seconds)
            request = synchronizer_pb2.CreateExperimentRequest(
                tenant=plan.tenant,
                label=plan.label,
                plan_json=plan.model_dump_json(),
                keep_running=True,
            )
            answer: synchronizer_pb2.CreateExperimentResponse = await synchronizer.CreateExperiment(
                request, timeout=self.answer_seconds, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            raise service_not_ready(self.synchronizer, error, self.answer_seconds) from error
        verb = "goes on" if answer.resumed else "started"
        say(f"{self.plan.label} {verb} as {answer.experiment.id}")
        return answer.experiment

    async def _check_changes(
        self, synchronizer: SynchronizerServiceStub, say: Callable[[str], None]
    ) -> None:
        """Compares the plan with the one that the experiment was submitted with, if it was.

        Raises: UserError with a line for each change that it cannot go on with.
        """
        plan = self.plan
        known = await find_experiment(synchronizer, plan.tenant, plan.label, self.answer_seconds)
        if known is None:
            return
        request = pb.GetExperimentRequest(experiment_id=known.id)
        stored: pb.GetExperimentResponse
        stored = await synchronizer.GetExperiment(request, timeout=self.answer_seconds)
        before = ExperimentPlan.model_validate_json(stored.plan_json)
        same_content = ContentRecord(plan.job_path).is_same
        changed = compare_plans(before, plan, same_content, _stages_passed(known))
        check_changes(changed, plan.label, self.accepts_changes, self.accept_command)
        for note in changed.notes():
            say(note)


def _stages_passed(experiment: pb.Experiment) -> list[str]:
    """Returns the finished stages whose weights a later one began with."""
    begun = [
        index
        for index, stage in enumerate(experiment.stages)
        if stage.state != pb.STAGE_STATE_PENDING
    ]
    return [stage.name for stage in experiment.stages[: max(begun, default=0)]]


def service_not_ready(address: str, error: grpc.aio.AioRpcError, seconds: float) -> TrinityError:
    """Converts a failed request to the synchronizer, after so many seconds, into an error."""
    if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
        return ServiceNotReady(
            f"the synchronizer at {address} did not answer within {seconds:.0f} s: "
            "look at its log, or correct `--synchronizer`"
        )
    return error_of(error)


def refuse_local_modes(plan: ExperimentPlan) -> None:
    """Raises UserError, with what to do, for a plan that only `trinity run` can start."""
    if is_serve(plan):
        raise UserError(
            "`mode: serve` is started with `trinity run`, on the serving machine: a model "
            "inside a deployed explorer cannot be reached"
        )
    if is_bench(plan):
        raise UserError(
            "`mode: bench` of a run is started with `trinity run`, on the machine that has the run "
            "in its directory and its database"
        )
    if started_data_juicer(plan) is not None:
        raise UserError(
            "`service.data_juicer.auto_start` starts a server with `trinity run` alone: run "
            "`python -m trinity.user_code.data_juicer.server` beside the buffer, and give "
            "`service.data_juicer.server_url`"
        )


def read_plan(path: Path) -> ExperimentPlan:
    """Reads a plan that `trinity deploy render` wrote.

    Raises: UserError if the file is not a plan.
    """
    try:
        return ExperimentPlan.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "its beginning"
        raise UserError(
            f"{path} is no plan of this version (at {where}): write it with `trinity deploy render`"
        ) from error


async def cancel_experiment(plan: ExperimentPlan, synchronizer: str, reason: str) -> str:
    """Cancels the experiment of a plan's label; returns its id.

    Raises: UserError if it does not exist or has ended.
    """
    async with open_channel(synchronizer) as channel:
        stub: SynchronizerServiceStub = SynchronizerServiceStub(channel)
        try:
            found = await find_experiment(stub, plan.tenant, plan.label)
            if found is None:
                raise UserError(f"{plan.label} was never submitted to {synchronizer}")
            if found.state in ENDED:
                why = f": {found.reason}" if found.reason else ""
                raise UserError(f"{plan.label} {ENDED[found.state]}{why}")
            request = pb.CancelExperimentRequest(experiment_id=found.id, reason=reason)
            await stub.CancelExperiment(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise service_not_ready(synchronizer, error, CALL_SECONDS) from error
    return str(found.id)
