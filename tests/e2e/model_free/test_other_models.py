"""Models beside the policy, and in its place, over real services."""

from pathlib import Path

import pytest
from pydantic import JsonValue

from tests.support.chat_server import KEY, ChatServer
from tests.support.model_free.alone import weights_of
from tests.support.model_free.experiment import experiment_plan, run_to_end
from tests.support.model_free.model import write_model
from tests.support.model_free.stack import model_free_services, model_free_stack
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import RunFailed
from trinity.launch.run import LocalRun
from trinity.progress.reporter import make_reporter
from trinity.progress.summary import RunSummary

pytestmark = pytest.mark.timeout(600)

GRPO: JsonValue = {"algorithm_type": "grpo", "repeat_times": 2, "kl_loss_fn": "none"}
THEIRS: JsonValue = {
    "base_url_env": "THEIR_ADDRESS",
    "api_key_env": "THEIR_KEY",
    "model_name": "their-model",
}


async def trained(root: Path, *judges: JsonValue) -> list[str]:
    """Final weights with each judge, one run after the other."""
    plans = [
        experiment_plan(
            root,
            name=f"run-{place}",
            buffer={
                "explorer_input": {
                    "default_workflow_type": "tests.support.model_free.workflows.Judged"
                },
                "total_steps": 3,
            },
            explorer={"auxiliary_models": [judge]},
        )
        for place, judge in enumerate(judges)
    ]
    async with model_free_stack(root / "stack") as stack:
        at = stack.addresses.synchronizer
        return [weights_of(await run_to_end(at, plan)) for plan in plans]


async def test_a_judged_run_repeats_itself_and_another_judge_makes_another(tmp_path: Path) -> None:
    judges: list[JsonValue] = [
        {"name": "judge", "model_path": str(write_model(tmp_path / name, name))}
        for name in ("mild", "strict")
    ]
    first, other, again = await trained(tmp_path, judges[0], judges[1], judges[0])
    assert again == first != other


async def test_a_judge_may_be_a_model_that_others_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ChatServer().serving() as server:
        monkeypatch.setenv("THEIR_ADDRESS", server.address)
        monkeypatch.setenv("THEIR_KEY", KEY)
        judge = {"engine_type": "external", "external_model_config": THEIRS}
        await trained(tmp_path, judge)
    assert len(server.requests) == 3 * 4 * 2, "steps, tasks and runs"
    assert set(server.keys) == {f"Bearer {KEY}"}
    assert holding(tmp_path, KEY) == []


def elsewhere(root: Path, mode: str) -> ExperimentPlan:
    """A model of others, with a held-out taskset."""
    return experiment_plan(
        root,
        stages=[{"stage_name": "look", "mode": mode, "algorithm": GRPO}],
        model={"model_path": "", "external_model": {"enable": True, **THEIRS}},  # type: ignore[dict-item]
        buffer={
            "total_steps": 2,
            "explorer_input": {
                "eval_tasksets": [{"name": "held_out", "path": str(root / "run.jsonl")}]
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
    [pytest.param("bench", 0, marks=pytest.mark.thorough), ("explore", 2 * 4 * 2)],
)
async def test_a_model_that_others_serve_is_evaluated_and_its_key_is_written_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, num_explored: int
) -> None:
    async with ChatServer().serving() as server:
        monkeypatch.setenv("THEIR_ADDRESS", server.address)
        monkeypatch.setenv("THEIR_KEY", KEY)
        summary = await executed(elsewhere(tmp_path, mode))
    [stage] = summary.stages
    [done] = stage.evaluations
    assert (done.version, done.taskset, done.num_failed) == (0, "held_out", 0)
    assert len(server.requests) == 64 + num_explored
    assert holding(tmp_path, KEY) == []


async def test_a_key_that_is_refused_ends_the_run_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ChatServer(always=401).serving() as server:
        monkeypatch.setenv("THEIR_ADDRESS", server.address)
        monkeypatch.setenv("THEIR_KEY", KEY)
        with pytest.raises(RunFailed, match=r"HTTP 401\): correct the key in THEIR_KEY"):
            await executed(elsewhere(tmp_path, "bench"))
    assert holding(tmp_path, KEY) == []


def holding(root: Path, text: str) -> list[Path]:
    """Files that hold the text."""
    files = [path for path in root.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if text.encode() in path.read_bytes()]
