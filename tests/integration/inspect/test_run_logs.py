"""The logs that a run leaves say what happened in each of its steps."""

import re
from pathlib import Path

import pytest

from tests.integration.inspect.conftest import trinity
from tests.support.model_free.ended_run import EndedRun

pytestmark = pytest.mark.timeout(400)


def steps_of(text: str, what: str) -> list[int]:
    return [int(step) for step in re.findall(rf": {what} step=(\d+)", text)]


async def test_logs_name_each_explore_step_train_step_and_version(ended_run: EndedRun) -> None:
    log = ended_run.untouched / "log"  # those who start in the run's directory write to its logs
    explorer = (log / "explorer.log").read_text()
    trainer = (log / "trainer.log").read_text()
    for text, name in ((explorer, "explore step"), (trainer, "train step")):
        assert steps_of(text, f"{name} began") == list(range(1, 9))
        assert steps_of(text, f"{name} ended") == list(range(1, 9))
    assert re.search(r"explore step ended step=1 .*reward_mean=0\.\d+ .*letters=", explorer)
    assert re.search(r"train step ended step=1 .*actor/loss=.*time/train_step=", trainer)
    assert steps_of(trainer, "weights published") == list(range(9))
    assert steps_of(trainer, "checkpoint saved") == [3, 6, 8]
    loaded = re.findall(r"weights loaded version=(\d+)", explorer)
    assert [int(version) for version in loaded] == list(range(8))


async def test_lines_of_rewards_are_in_the_logs_of_runners_alone(ended_run: EndedRun) -> None:
    job = Path(ended_run.plan.job_path)
    own = "letters are counted"
    assert own not in (job / "log" / "explorer.log").read_text()
    runners = sorted((job / "log").glob("explorer_runner_*.log"))
    assert len(runners) == 8
    assert all(own in path.read_text() for path in runners)
    out, _, error = await trinity("log", "--service", "explorer_runner_0", job_dir=job)
    assert error is None
    assert own in out
