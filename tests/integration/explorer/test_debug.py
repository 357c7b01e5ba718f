"""`trinity debug`: the engine stays, and workflows are tried on it."""

import asyncio
import json
import os
import signal
import sys
import tempfile
import threading
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from services.explorer import engines
from services.explorer.debug.client import socket_folder, socket_path
from services.explorer.debug.engine import serve_models
from services.explorer.debug.workflow import TrialOptions, try_workflow
from services.explorer.engines import EngineManager
from tests.support.model_free.engine import CharacterTokenizer, start_hash_engine
from tests.support.model_free.experiment import experiment_plan
from tests.support.model_free.stack import REPOSITORY
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError
from trinity.plugins import WORKFLOWS
from trinity.runtime.presence import WaitRegistry
from trinity.types import Experience
from trinity.workflows.workflow import Workflow

pytestmark = pytest.mark.timeout(600)


class Tried(Workflow):
    """One answer; the second task has none."""

    is_async = True
    shares_loop = True

    async def run_async(self) -> list[Experience]:
        (made,) = await self.model.chat_async([{"role": "user", "content": self.task.task_desc}])
        made.reward = 0.25
        made.metrics["letters"] = float(len(made.response_text))
        if self.task.row == 1:
            raise RuntimeError("no second answer")
        return [made]


class TriedInThread(Workflow):
    """The same in a thread, with the tokenizer."""

    def run(self) -> list[Experience]:
        (made,) = self.model.chat([{"role": "user", "content": self.task.task_desc}])
        made.reward = float(len(self.model.tokenizer.encode("abc").token_ids))
        return [made]


class NeverEnds(Workflow):
    """Waits until the engine is gone."""

    is_async = True
    shares_loop = True

    async def run_async(self) -> list[Experience]:
        await self.model.chat_async([{"role": "user", "content": "a"}])
        await asyncio.Event().wait()
        return []


class EngineThread:
    """The engine in a thread, as it is in a process of its own."""

    def __init__(self, plan: StagePlan) -> None:
        self._plan = plan
        self._up = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._up.wait(60)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(60)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        manager = EngineManager(
            start=start_hash_engine, waits=WaitRegistry(owner="debug", on_change=lambda: None)
        )
        models = await manager.ensure(self._plan)
        path = socket_path(self._plan)
        serving = asyncio.create_task(serve_models(models, path, self._stop))
        while not path.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        self._up.set()
        await serving
        await manager.close_engines()


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder with a short path, as sockets need."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def plan(tmp_path: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch) -> StagePlan:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(sockets))
    monkeypatch.setattr(engines, "_load_tokenizer", lambda _: CharacterTokenizer())
    monkeypatch.setitem(WORKFLOWS._sources, "tried", Tried)
    monkeypatch.setitem(WORKFLOWS._sources, "tried_in_thread", TriedInThread)
    return of_workflow(experiment_plan(tmp_path, num_tasks=8).stages[0], "tried")


def of_workflow(plan: StagePlan, name: str) -> StagePlan:
    (taskset,) = plan.tasksets
    changed = taskset.model_copy(update={"workflow": name, "repeat_times": 8})
    return plan.model_copy(update={"tasksets": (changed,)})


@pytest.fixture
def engine(plan: StagePlan) -> Iterator[EngineThread]:
    """An engine that is up."""
    made = EngineThread(plan)
    made.start()
    yield made
    made.stop()


async def test_a_workflow_is_tried_on_an_engine_that_stays(
    plan: StagePlan,
    engine: EngineThread,  # noqa: ARG001
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "made" / "experiences.jsonl"
    options = TrialOptions(output_file=str(file))
    assert await try_workflow(plan, options, 7, "start it") == 1
    out = capsys.readouterr().out
    assert "== task 0 (row 0 of train), run 1:" in out
    assert "reward 0.25 (letters 3)" in out
    assert "prompt:\n  user:0+0=\n" in out
    assert "tokens: 10 of the prompt, 4 after it, 4 trained\nmask: 4 trained\n" in out
    assert "failed: RuntimeError: no second answer" in out
    assert out.endswith(
        "4 runs, 2 failed, 2 experiences\nrewards: mean 0.25, standard deviation 0\n"
    )
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted((row["task_index"], row["eid"]["run"]) for row in rows) == [(0, 0), (0, 1)]
    assert rows[0]["action_mask"] == [True] * 4
    assert bytes(rows[0]["tokens"][:10]) == b"user:0+0=\n"
    # Another workflow and other rows, on the same engine.
    chosen = replace(options, first_row=2, num_tasks=1, repeat_times=1, output_file="")
    assert await try_workflow(of_workflow(plan, "tried_in_thread"), chosen, 7, "start it") == 0
    out = capsys.readouterr().out
    assert "(row 2 of train), run 0" in out
    assert "reward 3 (built_by_workflow 0)\n" in out


async def test_without_an_engine_the_command_to_start_one_is_named(
    plan: StagePlan, sockets: Path
) -> None:
    with pytest.raises(UserError, match="start one with start it"):
        await try_workflow(plan, TrialOptions(), 7, "start it")
    with pytest.raises(UserError, match="no row 99"):
        await try_workflow(plan, TrialOptions(first_row=99), 7, "start it")
    with pytest.raises(UserError, match="give one of train"):
        await try_workflow(plan, TrialOptions(taskset="other"), 7, "start it")
    (sockets / f"trinity-debug-{os.getuid()}").chmod(0o755)
    with pytest.raises(UserError, match="must be yours"):
        socket_folder()


async def test_another_model_needs_another_engine(
    plan: StagePlan,
    engine: EngineThread,  # noqa: ARG001
) -> None:
    other = plan.model_copy(update={"max_model_len": plan.max_model_len + 1})
    with pytest.raises(UserError, match="no engine is up"):
        await try_workflow(other, TrialOptions(), 7, "start it")


def test_a_path_that_is_too_long_for_a_socket_is_said(
    plan: StagePlan, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sockets / ("f" * (104 - len(f"{sockets}/trinity-debug-{os.getuid()}/")))
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    with pytest.raises(UserError, match="set XDG_RUNTIME_DIR to a folder of yours with a shorter"):
        socket_path(plan)


async def test_runs_end_when_the_engine_is_gone(
    plan: StagePlan, engine: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WORKFLOWS._sources, "never_ends", NeverEnds)
    plan = of_workflow(plan, "never_ends")
    trying = asyncio.create_task(try_workflow(plan, TrialOptions(num_tasks=1), 7, "start it"))
    await asyncio.sleep(0.5)
    await asyncio.to_thread(engine.stop)
    assert not socket_path(plan).exists()
    trying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trying


START = """
import sys
from trinity.cli import debug
debug.SERVICE = 'tests.support.model_free.debug'
from trinity.cli.main import main
main()
"""
PLUGIN = """
from trinity.common.workflows import WORKFLOWS
from trinity.workflows.simple_workflow import SimpleWorkflow


@WORKFLOWS.register_module("of_a_file")
class OfAFile(SimpleWorkflow):
    async def run_async(self):
        self.logger.info("asked for %s", self.task.task_desc)
        return await super().run_async()
"""


async def test_both_modules_as_they_are_typed(
    plan: StagePlan, tmp_path: Path, sockets: Path
) -> None:
    """In two processes, on a file of the user."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "own.py").write_text(PLUGIN)
    taskset = {
        "name": "train",
        "path": str(tmp_path / "run.jsonl"),
        "default_workflow_type": "of_a_file",
        "default_reward_fn_type": "tests.support.model_free.reward.LettersReward",
    }
    config = {
        "project": "model-free",
        "name": "tried",
        "checkpoint_root_dir": str(tmp_path / "checkpoints"),
        "algorithm": {"algorithm_type": "grpo", "repeat_times": 8},
        "model": {
            "model_path": plan.model_path,
            "max_prompt_tokens": 64,
            "max_response_tokens": 8,
        },
        "buffer": {
            "batch_size": 4,
            "total_steps": 8,
            "explorer_input": {"taskset": taskset},
        },
    }
    (tmp_path / "tried.yaml").write_text(yaml.safe_dump(config))
    environment = {**os.environ, "PYTHONPATH": REPOSITORY, "XDG_RUNTIME_DIR": str(sockets)}
    typed = (sys.executable, "-c", START, "debug", "--config", "tried.yaml", "--module")
    engine = await asyncio.create_subprocess_exec(
        *typed, "inference_model", stdout=PIPE, env=environment, cwd=tmp_path
    )
    assert engine.stdout is not None
    try:
        while b"Ctrl+C" not in (line := await engine.stdout.readline()):
            assert line
        tried = await asyncio.create_subprocess_exec(
            *(*typed, "workflow", "--plugin-dir", "plugins", "--output-dir", "made", "-n", "1"),
            stdout=PIPE,
            env=environment,
            cwd=tmp_path,
        )
        out, _ = await tried.communicate()
        assert tried.returncode == 0, out.decode()
        assert b"asked for 0+0=" in out
        assert b"2 runs, 0 failed, 2 experiences" in out
        made = (tmp_path / "made" / "experiences.jsonl").read_text()
        assert len(made.splitlines()) == 2
    finally:
        engine.send_signal(signal.SIGINT)
        await engine.communicate()
    assert engine.returncode == 0
    assert not (tmp_path / "checkpoints").exists()
