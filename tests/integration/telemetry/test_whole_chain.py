"""Spans of all four processes, sent over OTLP, tell the whole way of a task and of a train step."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.integration.inspect.conftest import trinity
from tests.integration.telemetry.http_receiver import http_receiver
from tests.integration.telemetry.receiver import Receiver, SeenSpan, receiver
from tests.support.model_free.engine import RUN_SECONDS_VARIABLE
from tests.support.model_free.experiment import experiment_plan, start_experiment, wait_until_ended
from tests.support.model_free.stack import model_free_stack
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.runtime.telemetry import metrics as i
from trinity.runtime.telemetry import names, tracing

SERVICES = ("synchronizer", "buffer", "trainer", "explorer")
STEPS, GROUPS, RUNS = 3, 4, 2
METRICS = {
    "explorer": (
        *(i.SAMPLE_SECONDS, i.REWARD, i.GENERATE_SECONDS, i.GENERATE_TOKENS, i.SYNC_SECONDS),
        *(i.ACTIVE_RUNS, i.OUTBOX_RESULTS, i.OUTBOX_SECONDS, i.CONFIRM_SECONDS),
        *(i.GATE_SECONDS, i.LOADED_VERSION, i.CLIENT_SECONDS),
    ),
    "buffer": (
        *(i.ASSIGNMENTS_LEASED, i.STREAM_PENDING, i.STORED),
        *(i.STORE_SECONDS, i.GROUPS_SHAPED, i.SHAPE_SECONDS, i.BATCH_ROWS, i.SERVER_SECONDS),
    ),
    "trainer": (
        *(i.LOOP_SECONDS, i.TRAIN_SECONDS, i.SYNC_SECONDS, i.BATCH_WAIT_SECONDS, i.STALENESS),
        *(i.TRAINED_TOKENS, i.TRAINED_STEP, i.CLIENT_SECONDS),
    ),
    "synchronizer": (i.SERVER_SECONDS,),
}
PUBLISH = "trinity.api.v1.SynchronizerService/PublishVersion"


@pytest.fixture
def seen() -> Iterator[Receiver]:
    with receiver() as seen:
        yield seen


def plan_of(root: Path) -> ExperimentPlan:
    return experiment_plan(root, buffer={"total_steps": STEPS})


async def run(
    plan: ExperimentPlan,
    seen: Receiver,
    *,
    explorer: Mapping[str, str] | None = None,
    kills_explorer: bool = False,
) -> None:
    """To its end; an explorer that is killed is so while its runs go on."""
    environment = {name: seen.environment() for name in SERVICES}
    environment["explorer"] |= explorer or {}
    async with model_free_stack(plan.job_path, environment=environment) as stack:
        experiment = await start_experiment(stack.addresses.synchronizer, plan)
        if kills_explorer:
            await _kill_explorer(seen)
        ended = await wait_until_ended(stack.addresses.synchronizer, experiment.id)
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason


async def _kill_explorer(seen: Receiver) -> None:
    """As soon as work was handed to it, which it does not tell before its end."""
    while not seen.named(names.LEASE) or not seen.named(names.LOAD):  # noqa: ASYNC110  # it is sent
        await asyncio.sleep(0.02)
    process = seen.named(names.LOAD)[0].process
    os.kill(int(process.rpartition("/")[2]), signal.SIGKILL)


def parents(spans: list[SeenSpan]) -> Counter[tuple[str, str]]:
    """How often a span of a name is the child of which, `-` for none and `?` for one not seen."""
    by_id = {span.span_id: span.name for span in spans}
    return Counter(
        (span.name, by_id.get(span.parent_id, "?") if span.parent_id else "-") for span in spans
    )


async def test_the_whole_way_of_tasks_and_steps(tmp_path: Path, seen: Receiver) -> None:
    plan = plan_of(tmp_path)
    with http_receiver(seen) as over_http:
        explorer = over_http.environment(TRINITY_EXPLORER_LOG_FORMAT="json")
        await run(plan, seen, explorer=explorer)
    assert {one.path for one in over_http.posted} == {"/v1/traces", "/v1/metrics"}
    traces = seen.traces()
    tasks = {
        str(span.attributes[names.ASSIGNMENT]): traces[span.trace_id]
        for span in seen.named(names.TASK)
    }
    assert len(tasks) == STEPS * GROUPS
    assert {span.service for span in seen.spans} == {f"trinity-{name}" for name in SERVICES}
    for assignment, spans in tasks.items():
        assert {span.trace_id for span in spans} == {tracing.task_span(assignment).trace_hex}
        chain = parents([span for span in spans if span.name not in (names.SEND, names.PROCESS)])
        assert chain == {
            (names.TASK, "-"): 1,
            (names.LEASE, names.TASK): 1,
            (names.SAMPLE, names.LEASE): RUNS,
            ("text_completion", names.SAMPLE): RUNS,
            (names.PUBLISH, names.SAMPLE): RUNS,
            (names.STORE, names.PUBLISH): RUNS,
            (names.PIPELINE, names.TASK): 1,
        }
    check_messages(seen)
    check_steps(seen, tasks)
    check_metrics(seen)
    await check_log(plan.job_path, seen)


async def check_log(job: Path, seen: Receiver) -> None:
    """What several services said in a train step's trace is found by it, however they wrote it."""
    trace = seen.named(names.LOAD)[0].trace_id
    written = [
        line for file in (job / "log").glob("*.log") for line in file.read_text().splitlines()
    ]
    said = [line for line in written if trace in line]
    assert {line.startswith("{") for line in said} == {True, False}
    assert any("trace_id" in line for line in written if line not in said)
    out, _, error = await trinity("log", "--trace", trace, "--json", job_dir=job)
    found = [json.loads(line) for line in out.splitlines()]
    assert error is None and len(found) == len(said)
    assert {line["service"] for line in found} == {"synchronizer", "explorer"}
    assert {line["trace_id"] for line in found} == {trace}
    assert [line["time"] for line in found] == sorted(line["time"] for line in found)
    out, _, _ = await trinity("log", "--trace", trace[:8], job_dir=job)
    assert len(out.splitlines()) == len(said)


def check_messages(seen: Receiver) -> None:
    """Each message was taken in the trace in which it was sent."""
    sent = {span.span_id for span in seen.named(names.SEND)}
    taken = [span.parent_id for span in seen.named(names.PROCESS)]
    assert set(taken) == sent and len(taken) == len(sent)


def check_metrics(seen: Receiver) -> None:
    """Each service tells what a person would look for; counters come to what was done."""
    for service, told in METRICS.items():
        of_service = f"trinity-{service}"
        assert not [one.name for one in told if of_service not in seen.metrics.get(one.name, ())]
    counted = {
        one: seen.newest(one.name, {})
        for one in (i.ASSIGNMENTS_LEASED, i.GROUPS_SHAPED, i.BATCH_ROWS)
    }
    rows = STEPS * GROUPS * RUNS
    assert counted == {
        i.ASSIGNMENTS_LEASED: STEPS * GROUPS,
        i.GROUPS_SHAPED: STEPS * GROUPS,
        i.BATCH_ROWS: rows,
    }
    assert seen.newest(i.STORED.name, {names.FATE: "committed"}) == rows
    assert seen.newest(i.TRAINED_STEP.name, {names.STAGE: "rft"}) == STEPS


def check_steps(seen: Receiver, tasks: dict[str, list[SeenSpan]]) -> None:
    """Each step is linked to its tasks, and runs to the step that made their weights."""
    traces = seen.traces()
    loops = {span.attributes[names.STEP]: span for span in seen.named(names.LOOP)}
    assert sorted(loops) == list(range(1, STEPS + 1))
    used: list[str] = []
    for step, loop in loops.items():
        spans = traces[loop.trace_id]
        chain = parents(spans)
        for child, parent in (
            (names.TRAIN, names.LOOP),
            ("trinity.api.v1.BufferService/GetBatch", names.LOOP),
            (names.BATCH, "trinity.api.v1.BufferService/GetBatch"),
            (names.SYNC, names.LOOP),
            (PUBLISH, names.SYNC),
            (PUBLISH, PUBLISH),
            ("trinity.api.v1.BufferService/ReportStep", names.LOOP),
        ):
            assert chain[child, parent] >= 1, (step, child, parent, chain)
        published = [span for span in spans if span.name == PUBLISH]
        assert {span.service for span in published} == {"trinity-trainer", "trinity-synchronizer"}
        (train,) = [span for span in spans if span.name == names.TRAIN]
        (batch,) = [span for span in spans if span.name == names.BATCH]
        assert set(train.links) == set(batch.links) and len(train.links) == GROUPS
        used += [span_id for _, span_id in train.links]
        (sync,) = [span for span in spans if span.name == names.SYNC]
        assert sync.attributes[names.VERSION] == step
    first = {span.span_id for span in seen.named(names.TASK)}
    assert set(used) == first and len(used) == len(first)
    for checkpoint in seen.named(names.CHECKPOINT):
        assert checkpoint.parent_id == loops[checkpoint.attributes[names.STEP]].span_id
    loaded = {span.attributes[names.VERSION]: span.parent_id for span in seen.named(names.LOAD)}
    assert {loops[step].span_id for step in loops if step in loaded} <= set(loaded.values())
    made = {(loop.trace_id, loop.span_id): step for step, loop in loops.items()}
    for span in (span for spans in tasks.values() for span in spans if span.name == names.SAMPLE):
        (link,) = span.links
        assert made.get(link, 0) == span.attributes[names.VERSION]


async def test_a_killed_explorer_leaves_whole_traces(tmp_path: Path, seen: Receiver) -> None:
    slow = {RUN_SECONDS_VARIABLE: "1.0"}
    await run(plan_of(tmp_path), seen, explorer=slow, kills_explorer=True)
    assert len({span.process for span in seen.named(names.LOAD)}) == 2
    assert "trinity-trainer" in seen.metrics[i.WAIT_SECONDS.name]
    for task in seen.named(names.TASK):
        spans = seen.traces()[task.trace_id]
        leases = [span for span in spans if span.name == names.LEASE]
        stored = [span for span in spans if span.name == names.STORE]
        samples = {span.span_id: span for span in spans if span.name == names.SAMPLE}
        assert all(lease.parent_id == task.span_id for lease in leases)
        assert {span.attributes[names.RUN] for span in stored} == set(range(RUNS))
        assert {span.attributes[names.RUN] for span in samples.values()} == set(range(RUNS))
        assert all(span.parent_id in {one.span_id for one in leases} for span in samples.values())
        assert not [pair for pair in parents(spans) if pair[1] == "?"]
    assert max(Counter(span.trace_id for span in seen.named(names.LEASE)).values()) > 1


@pytest.mark.thorough
async def test_without_a_receiver_everything_goes_on(tmp_path: Path) -> None:
    gone = Receiver(address="127.0.0.1:9")
    await run(plan_of(tmp_path), gone)
    assert not gone.spans
