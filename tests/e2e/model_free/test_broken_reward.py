"""A run whose reward is broken says so and ends, and goes on once it is mended."""

from pathlib import Path

import pytest

from tests.support.model_free.experiment import experiment_plan
from tests.support.model_free.stack import model_free_services
from trinity.errors import RunFailed
from trinity.launch.run import LocalRun
from trinity.progress.reporter import make_reporter

pytestmark = pytest.mark.timeout(600)


async def test_a_run_that_cannot_go_on_says_why_and_resumes_when_mended(tmp_path: Path) -> None:
    flag = tmp_path / "broken"
    flag.touch()
    plan = experiment_plan(
        tmp_path,
        buffer={
            "total_steps": 2,
            "explorer_input": {
                "default_reward_fn_type": "tests.support.model_free.reward.BrokenReward",
                "taskset": {"reward_fn_args": {"broken_while": str(flag)}},
            },
        },
        explorer={"max_retry_times": 0},
        monitor={"monitor_type": "none"},
    )

    def run() -> LocalRun:
        reporter = make_reporter(plan.label)
        return LocalRun(plan=plan, reporter=reporter, services=model_free_services())

    with pytest.raises(RunFailed, match=r"the grader is broken.*; the logs are in "):
        await run().run_to_end()
    flag.unlink()
    summary = await run().run_to_end()
    assert (summary.state, summary.steps) == ("finished", 2)
