"""The cost of traces and metrics in a steady step: on, off, and without their code.

python -m benchmarks.tracing [--runs 5] [--before CHECKOUT] [--json FILE]

The services are real, only the engine and the learner sleep: 256 runs of a second and a train step
of a second a step, side by side. `--before` names a checkout without telemetry, as
`git worktree add` makes one; without it that figure is left out, and all that has changed since
is in it. So the calls that are off are measured by themselves too: more of them than a run has,
over the step. Spans and figures go to a receiver that throws them away. The ways take turns, so
that what else the machine does meets all of them.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import grpc

from benchmarks.model_free_run import STEP_RUNS, events_of, steady_plan, step_gaps
from benchmarks.table import PerformanceClaim, print_claims
from trinity.runtime.telemetry import metrics, names, tracing

ROOT = Path(__file__).resolve().parent.parent
NUM_STEPS, NUM_UNCOUNTED = 16, 4
SECONDS = 1.0
ON, OFF, BEFORE = "on", "off", "before"
MOST_ON, MOST_OFF = 1.05, 1.01
OFF_CALLS_OF_A_RUN = 50
"""Spans, links and figures of a run in all four services; some 20 are known."""
OFF_CALLS = 20_000
SOME: tracing.Attributes = {names.RUN: 3}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/tracing.json")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(_one_run()))
        return
    ways = [ON, OFF, *([BEFORE] if arguments.before else [])]
    measured: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    with _sink() as address:
        for run in range(arguments.runs):
            for way in ways[run % len(ways) :] + ways[: run % len(ways)]:
                code = arguments.before if way == BEFORE else ROOT
                measured[way].append(_started(code, _variables(way, address)))
                print(f"{way}, run {run}: {measured[way][-1]}", flush=True)
    _report(measured, arguments.json)


def _report(measured: dict[str, list[dict[str, float]]], path: Path) -> None:
    steps = {way: statistics.median(run["step"] for run in runs) for way, runs in measured.items()}
    cpu = {way: statistics.median(run["cpu"] for run in runs) for way, runs in measured.items()}
    off = off_seconds() * OFF_CALLS_OF_A_RUN * STEP_RUNS / steps[OFF]
    claims = [
        PerformanceClaim(
            "a step with traces and figures, over one without", *_over(steps, ON, OFF)
        ),
        PerformanceClaim("calls that are off, as a share of a step", off, MOST_OFF - 1, "<="),
    ]
    if BEFORE in steps:
        claims.append(
            PerformanceClaim("a step switched off, over one before", *_over(steps, OFF, BEFORE))
        )
    print_claims(claims)
    record = {
        "claims": [claim.as_json() for claim in claims],
        "step_seconds": steps,
        "cpu_seconds_of_all_processes": cpu,
        "runs": measured,
        "load": [run["load"] for runs in measured.values() for run in runs],
    }
    path.write_text(json.dumps(record, indent=2) + "\n")


def off_seconds() -> float:
    """Returns the processor seconds of one span with an attribute and one metric, switched off."""

    def call() -> None:
        with tracing.span(names.SAMPLE, attributes=SOME) as span:
            span.set(names.RUN, 3)
        metrics.SAMPLE_SECONDS.record(1.0, SOME)

    times = timeit.repeat(call, number=OFF_CALLS, timer=time.process_time)
    return min(times) / OFF_CALLS


def _over(steps: dict[str, float], one: str, other: str) -> tuple[float, float, Literal["<="]]:
    return steps[one] / steps[other], MOST_ON if one == ON else MOST_OFF, "<="


def _started(code: Path, variables: dict[str, str]) -> dict[str, float]:
    """A run in a process of its own, with the code of a checkout."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--one"],
        cwd=code,
        env=environment | {"PYTHONPATH": str(code)} | variables,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def _variables(way: str, address: str) -> dict[str, str]:
    if way != ON:
        return {}
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{address}",
        "OTEL_EXPORTER_OTLP_INSECURE": "true",
    }


def _one_run() -> dict[str, float]:
    """Seconds from one step's report to the next, and of computing from start to end."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory:
        plan = steady_plan(Path(directory), NUM_STEPS)
        events = asyncio.run(events_of(plan, run_seconds=SECONDS, step_seconds=SECONDS))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "step": statistics.median(step_gaps(events)[NUM_UNCOUNTED:]),
        "cpu": used.ru_utime + used.ru_stime,
        "load": load,
    }


@contextlib.contextmanager
def _sink() -> Iterator[str]:
    """An OTLP receiver that reads nothing: every answer is an empty message."""

    class Anything(grpc.GenericRpcHandler):  # type: ignore[misc]  # it has no types
        def service(self, _: object) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(lambda _, __: b"")

    server = grpc.server(ThreadPoolExecutor(4), handlers=[Anything()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


if __name__ == "__main__":
    main()
