"""What mTLS and tokens cost: a step of a whole system with them and without, and one call.

python -m benchmarks.security [--pairs 3] [--json FILE]

The services, the broker and the database are real; the engine and the learner sleep instead of
computing. With durations of 0 a step is nothing but the system's own work, the harshest case.
Runs with and without alternate, so that what else the machine does meets both.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from benchmarks.model_free_run import events_of, step_gaps
from benchmarks.table import Claim, print_claims
from tests.model_free.experiment import experiment_plan
from trinity.api.v1 import trainer_pb2 as pb
from trinity.api.v1 import trainer_pb2_grpc
from trinity.rpc.channel import open_channel
from trinity.rpc.server import Servicer, serve
from trinity.security.folder import PLAIN, Security
from trinity.security.issuing import Issuer, Part
from trinity.security.scopes import Scope
from trinity.settings import ServiceSettings

ROOT = Path(__file__).resolve().parent.parent
SERVICE = pb.DESCRIPTOR.services_by_name["TrainerService"].full_name
DURATIONS = ((0.0, 0.0), (1.0, 1.0))
"""Seconds of a rollout and of a train step."""
NUM_STEPS = 20
NUM_UNCOUNTED = 4
NUM_CALLS = 1_000
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
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for pair in range(arguments.pairs):
            for secure in (False, True):
                seconds[secure].append(_step_seconds(rollout, train, pair, secure=secure))
                name = "with" if secure else "without"
                print(f"{name}: {seconds[secure][-1]:.3f} s a step", flush=True)
        plain, secured = (statistics.median(seconds[secure]) for secure in (False, True))
        name = f"step with mTLS and tokens over one without, rollout {rollout:g} s, train {train:g}"
        claims.append(Claim(name, secured / plain, AIM, "<="))
        others.append({"name": name, "plain_seconds": plain, "secured_seconds": secured})
    print_claims(claims)
    load = {"load_average": os.getloadavg(), "num_cores": os.cpu_count()}
    record = {"claims": [one.as_json() for one in claims], "measured": others, "machine": load}
    print(json.dumps(record["measured"], indent=2))
    print(f"load average {load['load_average']} on {load['num_cores']} cores")
    arguments.json.write_text(json.dumps(record, indent=2) + "\n")


def _step_seconds(rollout: float, train: float, run: int, *, secure: bool) -> float:
    """From one report to the next, the median of the steps that count."""
    with tempfile.TemporaryDirectory() as directory:
        plan = experiment_plan(
            Path(directory),
            name=f"run-{run}",
            num_tasks=4 * NUM_STEPS,
            buffer={"total_steps": NUM_STEPS},
            synchronizer={"sync_interval": 1, "sync_offset": 1},
            trainer={"save_interval": 0},
        )
        events = asyncio.run(
            events_of(plan, run_seconds=rollout, step_seconds=train, secure=secure)
        )
    return statistics.median(step_gaps(events)[NUM_UNCOUNTED:])


async def _call_cost() -> dict[str, object]:
    """One small call, with and without."""
    with tempfile.TemporaryDirectory() as directory:
        part = Part(name="trainer", scopes=(Scope.READ,))
        folder = Issuer(Path(directory)).issue(part, timedelta(hours=1))
        return {
            "name": "a call, milliseconds",
            "plain": await _call_milliseconds(PLAIN),
            "secured": await _call_milliseconds(Security(folder)),
        }


async def _call_milliseconds(security: Security) -> float:
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
