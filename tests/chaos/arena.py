"""A stack to be killed at: with points, journals and switches, and addresses to look inside."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import grpc
import psycopg
from pydantic import JsonValue

from tests.chaos.aging import TIMEOUT_SECONDS
from tests.chaos.folder import VARIABLE, FaultsFolder
from tests.chaos.measured import EXPLORER, held_out
from tests.chaos.records import read_snapshot
from tests.chaos.snapshot import Snapshot
from tests.chaos.strains import CLOCK, CLOCKED, clock_variables, possible
from tests.chaos.visitor import Visitor
from tests.support.model_free.engine import RUN_SECONDS_VARIABLE
from tests.support.model_free.experiment import (
    GRPO,
    experiment_plan,
    final_weights,
    start_experiment,
    wait_until_ended,
)
from tests.support.model_free.learner import STEP_SECONDS_VARIABLE
from tests.support.model_free.stack import model_free_stack
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.run.local.addresses import free_port
from trinity.run.local.infrastructure import ProcessWithProbe
from trinity.run.local.process_spec import EventKind
from trinity.run.local.run_file import read_running
from trinity.run.local.services import StackContext, service_processes
from trinity.run.local.stack import LocalStack
from trinity.runtime.security.secret_files import SecretFiles

SERVICES = ("synchronizer", "buffer", "trainer", "explorer")
OTHER_HOST = "127.0.0.2"
MANY = 10_000
RETRY_SECONDS = 0.1
ASK_AGAIN_SECONDS = 5.0
SEGMENT_MAX_ROWS = "4"
"""Of contents that are removed together: half of what a step takes."""
LATER_REWARD = "tests.support.model_free.later_reward.LaterReward"
END_SECONDS = 120.0
LEARNING_SELECTOR: dict[str, JsonValue] = {
    "selector_type": "difficulty_based",
    "feature_keys": ["weak", "strong"],
    "kwargs": {"target_reward": 0.5, "tau": 0.1},
}
"""What it has learned decides what is drawn: a wrong memory would end in other weights."""


@dataclass(slots=True)
class Arena:
    """One experiment after the other, on one stack.

    async with arena_in(folder) as arena:
        arena.folder.arm("buffer.results-committed")
        ended = await arena.run("first", num_steps=4)
        found = findings(arena.snapshot(ended, expected_weights))
    """

    root: Path
    folder: FaultsFolder
    make_stack: Callable[[], LocalStack]
    stack: LocalStack
    restarts: list[tuple[str, float]] = field(default_factory=list)
    """Which process was started again, and when."""
    plans: dict[str, ExperimentPlan] = field(default_factory=dict)
    """Of the experiments so far, by their labels."""
    is_up: asyncio.Event = field(default_factory=asyncio.Event)
    _noting: asyncio.Task[None] | None = None

    def secret(self, name: str) -> str:
        """An address with its password."""
        secrets: Path = SecretFiles(self.root / "stack" / "infra" / "secrets").folder
        return (secrets / name).read_text().strip()

    async def run(
        self,
        name: str,
        *,
        num_steps: int,
        seed: int = 7,
        sync_offset: int = 0,
        sync_style: str = "fixed",
        sync_method: str = "checkpoint",
        rank_num: int = 0,
        tenant: str = "default",
        colocated: bool = False,
        dtype: str = "float32",
        end_seconds: float = END_SECONDS,
        algorithm: Mapping[str, JsonValue] = GRPO,
        buffer: Mapping[str, JsonValue] | None = None,
        visited: bool = False,
        measured: bool = False,
        operators: Sequence[JsonValue] = (),
        data_processor: Mapping[str, JsonValue] | None = None,
    ) -> pb.Experiment:
        """An experiment from its start to its end, whatever dies meanwhile.

        With a visitor its rewards come later or never, some of its samples are taken out, and
        tasksets come; one that is measured has evaluations.

        Raises: TimeoutError when it does not end in time.
        """
        plan = experiment_plan(
            self.root / name,
            name=name,
            seed=seed,
            tenant=tenant,
            algorithm=algorithm,
            mode="colocate" if colocated else "both",
            buffer={
                "total_steps": num_steps,
                "keep_steps": 0,
                "explorer_input": self._explorer_input(name, visited=visited, measured=measured),
                "await_feedback": visited,
                "feedback_timeout": TIMEOUT_SECONDS if visited else 0,
                **(buffer or {}),
            },
            explorer=EXPLORER if measured else {},
            synchronizer={
                "sync_offset": sync_offset,
                "sync_style": sync_style,
                "sync_method": sync_method,
            },
            trainer={
                "save_interval": 2,
                "max_checkpoints_to_keep": 2,
                "dtype": dtype,
                "rank_num": rank_num,
            },
            data_processor={
                "experience_pipeline": {"operators": list(operators)},
                **(data_processor or {}),
            },
        )
        return await self.run_plan(plan, end_seconds=end_seconds, visited=visited)

    def _explorer_input(self, name: str, *, visited: bool, measured: bool) -> dict[str, JsonValue]:
        return {
            "taskset": {"data_selector": LEARNING_SELECTOR},
            **({"default_workflow_type": LATER_REWARD} if visited else {}),
            **({"eval_tasksets": [held_out(self.root / name)]} if measured else {}),
        }

    async def run_plan(
        self, plan: ExperimentPlan, *, end_seconds: float = END_SECONDS, visited: bool = False
    ) -> pb.Experiment:
        """The same for a plan that is made already."""
        self.plans[plan.label] = plan
        async with asyncio.timeout(end_seconds):
            while True:
                try:
                    begun = await start_experiment(self.stack.addresses.synchronizer, plan)
                except (
                    grpc.aio.AioRpcError
                ):  # it may have begun all the same: asking again finds it
                    await asyncio.sleep(RETRY_SECONDS)
                else:
                    async with self._visited(begun, visited):
                        return await self._end_of(begun.id)

    async def _end_of(self, experiment_id: str) -> pb.Experiment:
        """Asks again every few seconds: another launcher gives the services other addresses."""
        while True:
            await self.is_up.wait()
            address = self.stack.addresses.synchronizer
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_AGAIN_SECONDS):
                    return await wait_until_ended(address, experiment_id)

    async def relaunch(self, sent: signal.Signals) -> None:
        """Has the supervisor, which holds all processes, end; then starts the stack as it was."""
        self.is_up.clear()
        running = read_running(self.root / "stack")
        if running is not None:
            os.kill(running.supervisor_pid, sent)
        await self.stack.stop()
        self.stack = self.make_stack()
        await self.stack.__aenter__()
        self._note_restarts()
        self.restarts.append(("launcher", time.time()))
        self.is_up.set()

    @asynccontextmanager
    async def _visited(self, experiment: pb.Experiment, visited: bool) -> AsyncIterator[None]:
        visitor = Visitor(
            folder=self.folder,
            buffer=self.stack.addresses.buffer,
            database=self.secret("buffer-postgres-dsn"),
            experiment_id=experiment.id,
            tenant=experiment.tenant,
            stage=experiment.stages[0].name,
        )
        staying = asyncio.create_task(visitor.stay()) if visited else None
        try:
            yield
        finally:
            if staying is not None:
                staying.cancel()
                with suppress(asyncio.CancelledError):
                    await staying

    async def undisturbed(self, *, num_steps: int, seed: int = 7, visited: bool = False) -> str:
        """The weights that it ends with when nothing is killed."""
        name = "undisturbed-visited" if visited else "undisturbed"
        ended = await self.run(name, num_steps=num_steps, seed=seed, visited=visited)
        assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
        return final_weights(ended)

    def snapshot(self, ended: pb.Experiment, expected_weights: str) -> Snapshot:
        """What is on record of an experiment that has ended."""
        return read_snapshot(
            buffer_dsn=self.secret("buffer-postgres-dsn"),
            synchronizer_dsn=self.secret("synchronizer-postgres-dsn"),
            folder=self.folder,
            experiment_id=ended.id,
            expected_weights=expected_weights,
        )

    def snapshot_when_up(self, ended: pb.Experiment, expected_weights: str) -> Snapshot:
        """The same, as soon as the database lets itself be read."""
        while True:
            try:
                return self.snapshot(ended, expected_weights)
            except psycopg.OperationalError:
                time.sleep(RETRY_SECONDS)

    async def start(self) -> None:
        """Starts the stack."""
        await self.stack.__aenter__()
        self._note_restarts()
        self.is_up.set()

    def _note_restarts(self) -> None:
        self._noting = asyncio.create_task(self._keep_restarts(self.stack))

    async def _keep_restarts(self, stack: LocalStack) -> None:
        """Returns when the stack is stopped."""
        async for event in stack.events():
            if event.kind is EventKind.RESTARTED:
                self.restarts.append((event.process, time.time()))


def services_of_two_hosts(around: StackContext) -> list[ProcessWithProbe]:
    """The services, and the trainer of a second host, which the first one leads."""
    own = f"{OTHER_HOST}:{free_port(OTHER_HOST)}"
    of_other = replace(around, addresses=replace(around.addresses, trainer=own))
    [other] = [one for one in service_processes(of_other) if one.spec.name == "trainer"]
    variables = {"HOST": "1", "LEADER": around.addresses.trainer, "GANG_ADDRESS": OTHER_HOST}
    spec = replace(
        other.spec,
        name="host",
        log_file=other.spec.log_file.with_stem("host"),
        env=other.spec.env | {f"TRINITY_TRAINER_{key}": one for key, one in variables.items()},
    )
    return [*service_processes(around), replace(other, spec=spec)]


@asynccontextmanager
async def arena_in(
    root: Path,
    *,
    explorer: Mapping[str, str] | None = None,
    notes: Path | None = None,
    two_hosts: bool = False,
) -> AsyncIterator[Arena]:
    """A running stack whose processes may die any number of times.

    `explorer` holds further variables of its process. With `notes`, a folder on another disk for
    the nemesis and the journals, the clocks of services may be set. With `two_hosts` each gang
    has ranks of a second trainer.
    """
    folder = FaultsFolder(notes or root / "faults")
    folder.make()
    clocks = {
        name: clock_variables(folder.path, name)
        if notes and f"{name} {CLOCK}" in possible()
        else {}
        for name in CLOCKED
    }
    common = {VARIABLE: str(folder.path), "TRINITY_BUFFER_FUNCTION_VARIABLES": VARIABLE}
    make_stack = partial(
        model_free_stack,
        root / "stack",
        modules={name: f"tests.chaos.processes.{name}" for name in SERVICES}
        | {"host": "tests.chaos.processes.trainer"},
        environment={
            "synchronizer": {**common, **clocks["synchronizer"]},
            "buffer": {
                **common,
                **clocks["buffer"],
                "TRINITY_BUFFER_SEGMENT_MAX_ROWS": SEGMENT_MAX_ROWS,
            },
            "trainer": {
                **common,
                **clocks["trainer"],
                STEP_SECONDS_VARIABLE: "0.02",
                "TRINITY_TRAINER_MAX_RESTARTS": str(MANY),
                **({"TRINITY_TRAINER_NUM_HOSTS": "2"} if two_hosts else {}),
            },
            "explorer": {
                **common,
                **clocks["explorer"],
                RUN_SECONDS_VARIABLE: "0.02",
                **(explorer or {}),
            },
        },
        max_restarts=MANY,
        among=services_of_two_hosts if two_hosts else service_processes,
    )
    arena = Arena(root, folder, make_stack, make_stack())
    await arena.start()
    try:
        yield arena
    finally:
        await arena.stack.stop()
