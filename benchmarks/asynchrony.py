"""Gains of asynchrony: whole runs in simulated time, and steps of a second through the services.

python -m benchmarks.asynchrony [--parts tails steps stall] [--json FILE]

`tails`: 64 slots of 5 ms a token and log-normal lengths, with the explorer's own gate and swaps and
the buffer's own rules of admission; a train step takes three times the mean response. Time is the
event loop's: it jumps to the next timer, so this machine's speed does not count. Every token is
computed again. `steps`: real services, whose rollout and train step take a second each. `stall`:
vLLM with a model of 76 million parameters, whose weights change while requests run.
"""

import argparse
import asyncio
import json
import math
import selectors
import statistics
import tempfile
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from pydantic import JsonValue

from benchmarks.model_free_run import events_of, step_gaps
from benchmarks.overhead.untrained_model import write_big_model
from benchmarks.table import PerformanceClaim, print_claims
from services.buffer.domain.admission import RowLoad, check_credit, check_step_order
from services.explorer.engine.in_flight import InFlightEngine, PausingEngine
from services.explorer.engine.interface import Engine, EngineOptions
from services.explorer.engine.vllm import start_vllm
from services.explorer.engine.vllm_options import detect_hardware, prepare_environment
from services.explorer.engine.weight_transfer import WeightLoader
from services.explorer.rollout.weight_gate import WeightGate
from services.explorer.types import WeightsId, WeightsRequirement, WeightsVersion
from tests.support.model_free import slots
from tests.support.model_free.experiment import experiment_plan
from tests.support.model_free.slots import SlotEngine, slot_length, wrong_tokens
from tests.unit.buffer.builders import stage as stage_of
from tests.unit.explorer.builders import unheard_beats
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.explorer import RolloutModelConfig
from trinity.runtime.retry import RetryPolicy
from trinity.types import SamplingParams, VersionSpan
from trinity.workflows.generation import GenerationDelta

ROOT = Path(__file__).resolve().parents[1]
TASKS, REPEATS = 8, 8
ROWS = TASKS * REPEATS
NUM_STEPS = 40
TICK_SECONDS = 0.005
MEAN_SECONDS = TICK_SECONDS * slots.MEDIAN_TOKENS * math.exp(slots.SPREAD**2 / 2)
TRAIN_SECONDS = 3 * MEAN_SECONDS
LOAD_SECONDS = 0.06
MAX_TOKENS = 10_000
STYLES: Mapping[str, dict[str, JsonValue]] = {
    "offset 1": {"sync_offset": 1},
    "offset 1, keep": {"sync_offset": 1, "weight_update": "keep"},
    "fully async": {"sync_style": "fully_async"},
}
NUM_ENGINE_SLOTS = 64
SECOND_STEPS = 12
NUM_UNCOUNTED = 3
STEP_AIMS = {"offset 1": 1.05, "fully async": 1.03}
NUM_REQUESTS, NUM_SWAPS = 16, 5
PROMPT_TOKENS, RESPONSE_TOKENS = 20, 200
STALL_AIM = 0.06
"""Seconds beyond the load and the prefill of what runs."""


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        """Simulated seconds."""
        return self.now


class _Jumping(selectors.DefaultSelector):
    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everything waits for something else"
        self._loop.now += max(timeout, 0.0)
        return super().select(0)


def digest_of(version: int) -> bytes:
    """The weights of a version."""
    return version.to_bytes(32, "big")


def weights_of(version: int) -> WeightsVersion:
    """A version without files."""
    return WeightsVersion(
        id=WeightsId(version=version, incarnation=1),
        path=Path(f"/{version}"),
        manifest_sha256=b"",
        weights_sha256=b"",
    )


def _digest_of_span(span: VersionSpan) -> bytes:
    return digest_of(span.version)


class SlowlyLoaded(SlotEngine):
    """Takes time to load."""

    async def load_weights(self, directory: Path) -> None:
        """Takes a version by its number."""
        await asyncio.sleep(LOAD_SECONDS)
        self.digest = digest_of(int(directory.name))


@dataclass
class SimulatedRun:
    """Explorer, buffer and trainer of one run."""

    plan: StagePlan
    gate: WeightGate
    engine: Engine
    published: list[WeightsVersion]
    explore_step: int = 0
    recorded_step: int = 0
    num_outstanding: int = 0
    ready: list[int] = field(default_factory=list)
    """Tokens of the rows of whole groups."""
    num_tokens: int = 0
    num_wrong: int = 0
    lags: list[int] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def explore(self) -> None:
        """Opens explore steps as the buffer does."""
        async with asyncio.TaskGroup() as tasks:
            while self.recorded_step < NUM_STEPS:
                stage = stage_of(
                    self.plan,
                    explore_step=self.explore_step,
                    published=self.published[-1].id.version,
                    recorded_step=self.recorded_step,
                )
                load = RowLoad(num_outstanding=self.num_outstanding, num_ready=len(self.ready))
                if check_step_order(stage) or check_credit(stage, load):
                    self.changed.clear()
                    await self.changed.wait()
                    continue
                self.explore_step += 1
                self.num_outstanding += ROWS
                for task in range(TASKS):
                    tasks.create_task(self._group(self.explore_step, task))

    async def _group(self, explore_step: int, task: int) -> None:
        runs = (self._rollout(explore_step, task, run) for run in range(REPEATS))
        lengths = await asyncio.gather(*runs)
        self.num_outstanding -= REPEATS
        self.ready += lengths
        self.changed.set()

    async def _rollout(self, explore_step: int, task: int, run: int) -> int:
        version = self.published[-1].id.version
        if not self.plan.has_dynamic_sync:
            version = self.plan.required_version(explore_step)
        required = WeightsRequirement(version=version, incarnation=1, exact_version=False)
        prompt, seed = [explore_step, task], run
        async with self.gate.hold(required) as weights:
            sampling = SamplingParams(max_tokens=MAX_TOKENS, seed=seed)
            answer = await self.engine.generate(prompt, sampling)
        spans = answer.version_spans
        if spans:
            tokens = [*prompt, *answer.token_ids]
            self.num_wrong += wrong_tokens(tokens, len(prompt), spans, seed, _digest_of_span)
        oldest = min((span.version for span in spans), default=weights.version)
        self.lags.append(self.recorded_step - oldest)
        return len(answer.token_ids)

    async def train(self) -> None:
        """Takes batches of whole groups in the order of their ends."""
        for step in range(1, NUM_STEPS + 1):
            while len(self.ready) < ROWS:
                self.changed.clear()
                await self.changed.wait()
            self.num_tokens += sum(self.ready[:ROWS])
            del self.ready[:ROWS]
            self.recorded_step = step
            self.changed.set()
            await asyncio.sleep(TRAIN_SECONDS)
            self.published.append(weights_of(step))
            self.gate.on_weights_changed()
            self.changed.set()


async def simulate(plan: StagePlan) -> dict[str, float]:
    """Runs to the end; returns tokens a second, lag, and the share of time that slots are busy."""
    engine = SlowlyLoaded(digest_of(0), slots=NUM_ENGINE_SLOTS, tick_seconds=TICK_SECONDS)
    parts = [InFlightEngine(engine, weights_of(0).id)] if plan.keeps_requests else []
    one: Engine = parts[0] if parts else engine
    loader = WeightLoader(one, loaded=weights_of(0), in_flight=parts)
    published = [weights_of(0)]
    async with unheard_beats() as heartbeats:
        gate = WeightGate(
            load=loader.load_published,
            published=lambda: tuple(published[-4:]),
            heartbeats=heartbeats,
            retry_policy=RetryPolicy(heartbeats.waits, 3600.0),
            keeps_requests=plan.keeps_requests,
        )
        run = SimulatedRun(plan, gate, one, published)
        loading = asyncio.create_task(gate.load_when_needed())
        exploring = asyncio.create_task(run.explore())
        begun = asyncio.get_running_loop().time()
        await run.train()
        seconds = asyncio.get_running_loop().time() - begun
        for task in (exploring, loading):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    await engine.close()
    assert run.num_wrong == 0, f"{run.num_wrong} tokens were not drawn by the weights of their span"
    return {
        "tokens a second": run.num_tokens / seconds,
        "seconds a step": seconds / NUM_STEPS,
        "largest lag": float(max(run.lags)),
        "trainer busy": NUM_STEPS * TRAIN_SECONDS / seconds,
        "slots busy": run.num_tokens * TICK_SECONDS / NUM_ENGINE_SLOTS / seconds,
    }


def planned(style: str, folder: Path) -> StagePlan:
    """The plan of a style, with as many explore steps as it may open."""
    plan = experiment_plan(
        folder / style,
        num_tasks=TASKS,
        algorithm={"algorithm_type": "grpo", "repeat_times": REPEATS},
        buffer={"total_steps": 2 * NUM_STEPS, "batch_size": TASKS},
        synchronizer=STYLES[style],
    )
    return plan.stages[0]


def longest_over_train(num_steps: int = 2000) -> float:
    """The limit again: the mean of the longer of a train step and the longest of its responses."""
    seconds = [
        TICK_SECONDS * max(slot_length([step, row], 0) for row in range(ROWS))
        for step in range(num_steps)
    ]
    return statistics.mean(max(longest, TRAIN_SECONDS) for longest in seconds) / TRAIN_SECONDS


def with_tails(folder: Path) -> tuple[dict[str, object], list[PerformanceClaim]]:
    """Each style's run in simulated time."""
    found: dict[str, dict[str, float]] = {}
    for style in STYLES:
        with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
            found[style] = runner.run(simulate(planned(style, folder)))
    base = found["offset 1"]["tokens a second"]
    ratio = found["fully async"]["tokens a second"] / base
    claims = [
        PerformanceClaim("long tails: fully async over offset 1, tokens a second", ratio, 2.0, ">=")
    ]
    return {**found, "limit": longest_over_train()}, claims


def of_a_second(folder: Path) -> tuple[dict[str, object], list[PerformanceClaim]]:
    """Steps of eight runs by real services, in which rollouts and training take a second each."""
    found: dict[str, object] = {}
    claims = []
    for style, aim in STEP_AIMS.items():
        plan = experiment_plan(
            folder / style,
            buffer={"total_steps": SECOND_STEPS},
            synchronizer=STYLES[style],
            trainer={"save_interval": 0},
        )
        events = asyncio.run(events_of(plan, run_seconds=1.0, step_seconds=1.0))
        gaps: Sequence[float] = step_gaps(events)[NUM_UNCOUNTED:]
        found[style] = gaps
        what = f"steps of a second: {style}, over the longer of rollout and training"
        claims.append(PerformanceClaim(what, statistics.median(gaps), aim, "<="))
    return found, claims


class StallMeter:
    """Requests of a vLLM engine, and the longest time that they were without a token."""

    def __init__(self, engine: PausingEngine, models: Sequence[Path]) -> None:
        self._engine = engine
        self._models = models
        self._part = InFlightEngine(engine, weights_of(0).id)
        self._arrivals: list[list[float]] = []
        self._num_tokens: list[int] = []
        self._heard = asyncio.Event()

    async def measure(self) -> dict[str, float]:
        """Seconds of a load, of a prefill of what runs, and of a stall."""
        loads, prefills, stalls = [], [], []
        for swap in range(NUM_SWAPS):
            loads.append(await self._timed(self._engine.load_weights(self._models[swap % 2])))
            prefills.append(await self._timed(self._prefill(swap)))
            stalls.append(await self._stall(swap))
        return {
            "load": statistics.median(loads),
            "prefill": statistics.median(prefills),
            "stall": statistics.median(stalls),
        }

    async def _timed(self, call: Awaitable[None]) -> float:
        begun = time.perf_counter()
        await call
        return time.perf_counter() - begun

    async def _prefill(self, swap: int) -> None:
        """Prompts as long as what runs at a swap, in no cache."""
        length = PROMPT_TOKENS + RESPONSE_TOKENS // 2
        one = SamplingParams(max_tokens=1, seed=1)
        prompts = [
            [(7 * swap + 3 * request + place) % 30 for place in range(length)]
            for request in range(NUM_REQUESTS)
        ]
        await asyncio.gather(*(self._engine.generate(prompt, one) for prompt in prompts))

    async def _stall(self, swap: int) -> float:
        """The median over requests of the longest gap, less the usual one."""
        self._arrivals = [[] for _ in range(NUM_REQUESTS)]
        self._num_tokens = [0] * NUM_REQUESTS
        asking = [asyncio.create_task(self._ask(request)) for request in range(NUM_REQUESTS)]
        while min(self._num_tokens) < RESPONSE_TOKENS // 2:
            self._heard.clear()
            await self._heard.wait()
        self._part.name_next(weights_of(swap).id)
        await self._part.load_weights(self._models[(swap + 1) % 2])
        await asyncio.gather(*asking)
        gaps = [[b - a for a, b in pairwise(times)] for times in self._arrivals]
        return statistics.median(max(own) - statistics.median(own) for own in gaps)

    async def _ask(self, request: int) -> None:
        def on_delta(delta: GenerationDelta) -> None:
            self._arrivals[request].append(time.perf_counter())
            self._num_tokens[request] += len(delta.token_ids)
            self._heard.set()

        prompt = [(request + place) % 30 for place in range(PROMPT_TOKENS)]
        params = SamplingParams(max_tokens=RESPONSE_TOKENS, seed=request)
        await self._part.generate(prompt, params, min_tokens=RESPONSE_TOKENS, on_delta=on_delta)


async def stalled(models: Sequence[Path]) -> dict[str, float]:
    """Starts vLLM, and measures."""
    prepare_environment(str(models[0]), detect_hardware(), 1)
    rollout = RolloutModelConfig(dtype="float32", gpu_memory_utilization=0.1, enforce_eager=True)
    options = EngineOptions(
        model_path=str(models[0]), max_model_len=256, end_token_ids=(), rollout=rollout
    )
    engine = await start_vllm(options)
    try:
        return await StallMeter(engine, models).measure()
    finally:
        await engine.close()


def while_weights_change(folder: Path) -> tuple[dict[str, object], list[PerformanceClaim]]:
    """The stall of running requests."""
    models = [write_big_model(folder / name) for name in ("even", "odd")]
    found = asyncio.run(stalled(models))
    beyond = found["stall"] - found["load"] - found["prefill"]
    what = "stall while weights change, beyond load and prefill, seconds"
    return {**found}, [PerformanceClaim(what, beyond, STALL_AIM, "<=")]


PARTS = {"tails": with_tails, "steps": of_a_second, "stall": while_weights_change}


def main() -> None:
    """Measures and writes the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/asynchrony.json")
    given = parser.parse_args()
    record = json.loads(given.json.read_text()) if given.json.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for part in given.parts:
            figures, claims = PARTS[part](Path(folder) / part)
            record[part] = {"figures": figures, "claims": [claim.as_json() for claim in claims]}
            print_claims(claims)
            given.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
