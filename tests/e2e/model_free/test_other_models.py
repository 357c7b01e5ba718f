"""Models beside the policy, and in its place, over real services."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from pydantic import JsonValue

from tests.support.chat_server import KEY, ChatServer
from tests.support.model_free.alone import weights_of
from tests.support.model_free.experiment import experiment_plan, run_to_end
from tests.support.model_free.model import write_model
from tests.support.model_free.stack import model_free_services, model_free_stack
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.run.launch.run import LocalRun
from trinity.run.progress.reporter import make_reporter
from trinity.run.progress.summary import RunSummary

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

GRPO: JsonValue = {"algorithm_type": "grpo", "repeat_times": 2, "kl_loss_fn": "none"}
NUM_STEPS = 2


def theirs(name: str) -> dict[str, JsonValue]:
    """A model at the address and with the key that two variables hold."""
    return {
        "base_url_env": f"{name}_ADDRESS",
        "api_key_env": f"{name}_KEY",
        "model_name": "their-model",
    }


@asynccontextmanager
async def their_model(
    name: str, patch: pytest.MonkeyPatch, always: int | None = None
) -> AsyncIterator[ChatServer]:
    """One that is served, with the variables for it."""
    async with ChatServer(always=always).serving() as server:
        patch.setenv(f"{name}_ADDRESS", server.address)
        patch.setenv(f"{name}_KEY", KEY)
        yield server


@dataclass(frozen=True, slots=True)
class World:
    """A stack, and two models of others that it knows: one answers, one refuses every key."""

    root: Path
    synchronizer: str
    server: ChatServer

    async def trained(self, name: str, judge: JsonValue) -> str:
        """Final weights with this judge."""
        plan = experiment_plan(
            self.root,
            name=name,
            buffer={
                "explorer_input": {
                    "default_workflow_type": "tests.support.model_free.workflows.Judged"
                },
                "total_steps": NUM_STEPS,
            },
            explorer={"auxiliary_models": [judge]},
        )
        return weights_of(await run_to_end(self.synchronizer, plan))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    root = tmp_path_factory.mktemp("other-models")
    with pytest.MonkeyPatch.context() as patch:
        async with (
            their_model("THEIR", patch) as server,
            their_model("REFUSING", patch, always=401),
            model_free_stack(root / "stack") as stack,
        ):
            yield World(root, stack.addresses.synchronizer, server)


async def test_a_judged_run_repeats_itself_and_another_judge_makes_another(world: World) -> None:
    judges: list[JsonValue] = [
        {"name": "judge", "model_path": str(write_model(world.root / name, name))}
        for name in ("mild", "strict")
    ]
    mild, strict = judges
    first = await world.trained("mild", mild)
    assert await world.trained("strict", strict) != first
    assert await world.trained("mild-again", mild) == first


async def test_a_judge_may_be_a_model_that_others_serve(world: World) -> None:
    before = len(world.server.requests)
    judge: JsonValue = {"engine_type": "external", "external_model_config": theirs("THEIR")}
    await world.trained("their-judge", judge)
    assert len(world.server.requests) - before == NUM_STEPS * 4 * 2, "steps, tasks and runs"
    assert set(world.server.keys) == {f"Bearer {KEY}"}
    assert holding(world.root, KEY) == []


def elsewhere(root: Path, mode: str, name: str = "THEIR") -> ExperimentPlan:
    """A model of others, with a held-out taskset."""
    label = f"{name.lower()}-{mode}"
    return experiment_plan(
        root,
        name=label,
        stages=[{"stage_name": "look", "mode": mode, "algorithm": GRPO}],
        model={"model_path": "", "external_model": {"enable": True, **theirs(name)}},
        buffer={
            "total_steps": NUM_STEPS,
            "explorer_input": {
                "eval_tasksets": [{"name": "held_out", "path": str(root / f"{label}.jsonl")}]
            },
        },
        explorer={"eval_on_startup": True},
        synchronizer={"sync_timeout": 60},
        monitor={"monitor_type": "none"},
    )


async def executed(plan: ExperimentPlan) -> RunSummary:
    """What `trinity run` does."""
    run = LocalRun(plan=plan, reporter=make_reporter(plan.label), services=model_free_services())
    return await run.run_to_end()


@pytest.mark.parametrize(
    ("mode", "num_explored"),
    [pytest.param("bench", 0, marks=pytest.mark.thorough), ("explore", NUM_STEPS * 4 * 2)],
)
async def test_a_model_that_others_serve_is_evaluated_and_its_key_is_written_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, num_explored: int
) -> None:
    async with their_model("THEIR", monkeypatch) as server:
        summary = await executed(elsewhere(tmp_path, mode))
    [stage] = summary.stages
    [done] = stage.evaluations
    assert (done.version, done.taskset, done.num_failed) == (0, "held_out", 0)
    assert len(server.requests) == 64 + num_explored
    assert holding(tmp_path, KEY) == []


async def test_a_key_that_is_refused_ends_the_run_with_a_sentence(world: World) -> None:
    ended = await run_to_end(world.synchronizer, elsewhere(world.root, "bench", "REFUSING"))
    assert ended.state == pb.EXPERIMENT_STATE_FAILED
    assert "HTTP 401): correct the key in REFUSING_KEY" in ended.reason
    assert holding(world.root, KEY) == []


def holding(root: Path, text: str) -> list[Path]:
    """Files that hold the text."""
    files = [path for path in root.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if text.encode() in path.read_bytes()]
