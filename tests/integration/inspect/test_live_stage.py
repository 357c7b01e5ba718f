"""What a person says to a stage that goes on by the command line, and what its status shows."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.inspect.conftest import trinity
from tests.support.model_free.experiment import experiment_plan, start_experiment, wait_until_ended
from tests.support.model_free.stack import model_free_stack
from trinity.api.v1 import synchronizer_pb2
from trinity.errors import RunFailed
from trinity.run.launch.resume import store_plan
from trinity.types import JsonObject

pytestmark = pytest.mark.timeout(300)

NUM_SAMPLES = 8
"""Of an explore step: two runs of each of four tasks."""
PATIENCE_SECONDS = 60.0
LOOK_AGAIN_SECONDS = 0.2
WAITING: JsonObject = {
    "total_steps": 2,
    "max_refill_rounds": 0,
    "await_feedback": True,
    "explorer_input": {
        "default_workflow_type": "tests.support.model_free.later_reward.LaterReward"
    },
}
BETTER_HALF: JsonObject = {
    "experience_pipeline": {"operators": [{"name": "reward_filter", "args": {"threshold": 1}}]}
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A run that goes on, each of whose two explore steps waits for its rewards."""

    job_dir: Path
    synchronizer: str
    experiment_id: str

    async def says(self, *words: str) -> str:
        """What a command prints that has nothing to complain of."""
        out, said, error = await trinity(*words, job_dir=self.job_dir)
        assert (said, error) == ("", None)
        return out

    async def samples(self, *conditions: str) -> list[JsonObject]:
        """All that satisfy the conditions."""
        out = await self.says("view", *conditions, "--limit", "0", "--json")
        return [json.loads(line) for line in out.splitlines()]

    async def awaiting(self, explore_step: int) -> list[JsonObject]:
        """Its samples, once the rewards of all of them are awaited."""
        words = ("view", "state=awaiting", f"explore_step={explore_step}", "-n", "0", "--json")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                out, _, error = await trinity(*words, job_dir=self.job_dir)
                if error is None and len(out.splitlines()) == NUM_SAMPLES:
                    return [json.loads(line) for line in out.splitlines()]
                await asyncio.sleep(LOOK_AGAIN_SECONDS)

    def rewards(self, samples: Sequence[JsonObject], reward: float | None = None) -> str:
        """A file with the reward of each of them: the number of its run, or the one given."""
        file = self.job_dir / "rewards.jsonl"
        rows = [
            {"id": one["id"], "reward": one["run"] if reward is None else reward} for one in samples
        ]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(file)

    async def ended(self) -> synchronizer_pb2.Experiment:
        """The run at its end."""
        return await wait_until_ended(self.synchronizer, self.experiment_id)


@contextlib.asynccontextmanager
async def live_run(root: Path) -> AsyncIterator[Live]:
    plan = experiment_plan(root, buffer=WAITING, data_processor=BETTER_HALF)
    async with model_free_stack(plan.job_path) as stack:
        store_plan(plan)
        synchronizer = stack.addresses.synchronizer
        experiment = await start_experiment(synchronizer, plan)
        yield Live(job_dir=plan.job_path, synchronizer=synchronizer, experiment_id=experiment.id)


async def test_a_stage_that_goes_on_is_told_what_to_train_on_and_shows_what_it_does(
    tmp_path: Path,
) -> None:
    async with live_run(tmp_path) as run:
        samples = await run.awaiting(1)
        assert "of all samples" not in await run.says("status"), "nothing is settled yet"
        await _check_taking_out_and_back_in(run, f"task={samples[0]['task_index']}")
        await _check_rewarding(run, samples)
        second = await run.awaiting(2)
        await _check_status(run)
        await run.says("feedback", run.rewards(second))
        ended = await run.ended()
        assert ended.state == synchronizer_pb2.EXPERIMENT_STATE_FINISHED, ended.reason
        trained = await run.samples("step=1")
    assert [(one["run"], one["reward"]) for one in trained] == [(1, 1)] * 4
    assert {one["task_index"] for one in trained} == {one["task_index"] for one in samples}


async def _check_taking_out_and_back_in(run: Live, task: str) -> None:
    """A word without `--yes` only counts."""
    taking_out = ("exclude", task, "--reason", "a wrong label")
    counted = await run.says(*taking_out)
    assert counted == "2 samples would be excluded: add --yes to do it\n"
    assert await run.samples("state=excluded") == []
    assert await run.says(*taking_out, "--yes") == "2 samples are excluded\n"
    excluded = await run.samples("state=excluded")
    assert [one["reason"] for one in excluded] == ["a wrong label"] * 2
    assert await run.says(*taking_out, "--yes") == "0 samples are excluded\n"
    counted = await run.says("include", task)
    assert counted == "2 samples would be included again: add --yes to do it\n"
    assert len(await run.samples("state=excluded")) == 2
    assert await run.says("include", task, "--yes") == "2 samples are included again\n"
    assert await run.samples("state=excluded") == []
    await run.awaiting(1)


async def _check_rewarding(run: Live, samples: Sequence[JsonObject]) -> None:
    file = run.rewards(samples)
    assert await run.says("feedback", file) == "8 rewards are set, 0 were known\n"
    assert await run.says("feedback", file) == "0 rewards are set, 8 were known\n"
    out, _, error = await trinity("feedback", run.rewards(samples, 7.0), job_dir=run.job_dir)
    assert out == "0 rewards are set, 0 were known\n"
    assert isinstance(error, RunFailed)
    first = samples[0]
    assert str(error).startswith("8 rewards are refused\n")
    assert f"{first['id']}: its reward is {first['run']} already" in str(error)


async def _check_status(run: Live) -> None:
    """It compares what was generated with what was trained on: a filter took the worse half."""
    told = json.loads(await run.says("status", "--json"))
    assert told["is_running"] and told["experiments"][0]["state"] == "running"
    assert {member["role"] for member in told["members"]} >= {"explorer", "trainer"}
    assert json.loads(await run.says("why", "--json"))["state"] in ("working", "held")
    lines = (await run.says("status")).splitlines()
    place = lines.index("rft, explore step 1: 8 runs gave 8 samples, 4 of them were trained on")
    assert lines[place + 1] == "  4 were left out: its reward is below 1"
    table = [[cell.strip() for cell in line.split("│")] for line in lines[place:]]
    assert ["reward", "0.5", "1", "0.500"] in [cells[1:5] for cells in table]
