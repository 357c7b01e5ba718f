"""The cost of mTLS and tokens: a step of a whole system with them and without, and one call.

python -m benchmarks.security [--pairs 3] [--json FILE]

The services, the broker and the database are real; the engine and the learner sleep instead of
computing. With durations of 0 a step is nothing but the system's own work, the harshest case.
Runs with and without alternate, so that what else the machine does meets both.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import psutil

from benchmarks.model_free_run import read_events, step_times
from benchmarks.table import PerformanceClaim, print_claims
from tests.support.model_free.engine import RUN_SECONDS_VARIABLE
from tests.support.model_free.experiment import experiment_plan, run_to_end
from tests.support.model_free.learner import STEP_SECONDS_VARIABLE
from tests.support.model_free.stack import model_free_stack
from trinity.api.v1 import trainer_pb2 as pb
from trinity.api.v1 import trainer_pb2_grpc
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.run.local.stack import LocalStack
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.server import Servicer, serve
from trinity.runtime.security.authorization import Scope
from trinity.runtime.security.certificates import CredentialIssuer, CredentialRole
from trinity.runtime.security.credentials import PLAINTEXT, Credentials
from trinity.runtime.settings import ServiceSettings

ROOT = Path(__file__).resolve().parent.parent
SERVICE = pb.DESCRIPTOR.services_by_name["TrainerService"].full_name
DURATIONS = ((0.0, 0.0), (1.0, 1.0))
"""Seconds of a rollout and of a train step."""
NUM_STEPS = 20
NUM_UNCOUNTED = 4
NUM_CALLS = 1_000
SAMPLE_SECONDS = 0.2
AIM = 1.10


class _Trainer(trainer_pb2_grpc.TrainerServiceServicer):
    async def GetTrainerStatus(self, *_: object) -> pb.GetTrainerStatusResponse:
        return pb.GetTrainerStatusResponse(step=1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/security.json")
    arguments = parser.parse_args()
    others: list[dict[str, object]] = [asyncio.run(_call_cost())]
    claims = []
    for rollout, train in DURATIONS:
        steps: dict[bool, list[Step]] = {False: [], True: []}
        for pair in range(arguments.pairs):
            for secure in (False, True):
                step = asyncio.run(_step(rollout, train, pair, secure=secure))
                steps[secure].append(step)
                print(f"{'with' if secure else 'without'}: {step}", flush=True)
        plain, secured = (_median(steps[secure]) for secure in (False, True))
        name = f"with mTLS and tokens over without, rollout {rollout:g} s, train {train:g} s"
        claims.append(
            PerformanceClaim(f"a step {name}", secured.seconds / plain.seconds, AIM, "<=")
        )
        processor = secured.processor_seconds / plain.processor_seconds
        others.append(
            {
                "name": f"processor time of a step {name}",
                "ratio": processor,
                "plain": asdict(plain),
                "secured": asdict(secured),
            }
        )
    print_claims(claims)
    load = {"load_average": os.getloadavg(), "num_cores": os.cpu_count()}
    record = {"claims": [claim.as_json() for claim in claims], "measured": others, "machine": load}
    print(json.dumps(record["measured"], indent=2))
    print(f"load average {load['load_average']} on {load['num_cores']} cores")
    arguments.json.write_text(json.dumps(record, indent=2) + "\n")


@dataclass(frozen=True, slots=True)
class Step:
    """A step on the clock, the median, and in processor time of the whole system, the mean."""

    seconds: float
    processor_seconds: float


def _median(steps: list[Step]) -> Step:
    return Step(
        statistics.median(step.seconds for step in steps),
        statistics.median(step.processor_seconds for step in steps),
    )


async def _step(rollout: float, train: float, run: int, *, secure: bool) -> Step:
    """Returns the figures of the steps that count."""
    with tempfile.TemporaryDirectory() as directory:
        plan = experiment_plan(
            Path(directory),
            name=f"run-{run}",
            num_tasks=4 * NUM_STEPS,
            buffer={"total_steps": NUM_STEPS},
            synchronizer={"sync_interval": 1, "sync_offset": 1},
            trainer={"save_interval": 0},
        )
        environment = {
            "explorer": {RUN_SECONDS_VARIABLE: str(rollout)},
            "trainer": {STEP_SECONDS_VARIABLE: str(train)},
        }
        async with model_free_stack(plan.job_path, environment=environment, secure=secure) as stack:
            return await _measured(stack, plan)


async def _measured(stack: LocalStack, plan: ExperimentPlan) -> Step:
    at = stack.addresses
    used: list[tuple[float, float]] = []
    sampling = asyncio.create_task(_sample(stack, used))
    experiment = await run_to_end(at.synchronizer, plan, at.security)
    sampling.cancel()
    events = await read_events(at.buffer, plan, experiment.id, at.security)
    counted = step_times(events)[NUM_UNCOUNTED:]
    spent = [seconds for when, seconds in used if counted[0] <= when <= counted[-1]]
    gaps = [after - before for before, after in pairwise(counted)]
    return Step(statistics.median(gaps), (spent[-1] - spent[0]) / len(gaps))


async def _sample(stack: LocalStack, used: list[tuple[float, float]]) -> None:
    while True:
        used.append((time.time(), _processor_seconds(stack)))
        await asyncio.sleep(SAMPLE_SECONDS)


def _processor_seconds(stack: LocalStack) -> float:
    """Returns the processor seconds of all processes of the system since they began."""
    total = 0.0
    for pid in stack.pids.values():
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # it has ended
                used = process.cpu_times()
                total += used.user + used.system
    return total


async def _call_cost() -> dict[str, object]:
    """One small call, with and without."""
    with tempfile.TemporaryDirectory() as directory:
        part = CredentialRole(name="trainer", scopes=(Scope.READ,))
        folder = CredentialIssuer(Path(directory)).issue(part, timedelta(hours=1))
        return {
            "name": "a call, milliseconds",
            "plain": await _call_milliseconds(PLAINTEXT),
            "secured": await _call_milliseconds(Credentials(folder)),
        }


async def _call_milliseconds(security: Credentials) -> float:
    add = trainer_pb2_grpc.add_TrainerServiceServicer_to_server
    servicer = Servicer(name=SERVICE, add=add, implementation=_Trainer())
    async with (
        serve(ServiceSettings(), [servicer], security=security) as server,
        open_channel(server.address, security) as channel,
    ):
        stub = trainer_pb2_grpc.TrainerServiceStub(channel)
        times = []
        for _ in range(NUM_CALLS):
            begin = time.perf_counter()
            await stub.GetTrainerStatus(pb.GetTrainerStatusRequest())
            times.append(time.perf_counter() - begin)
    return 1_000 * statistics.median(times)


if __name__ == "__main__":
    main()
