"""A mistake in the code of a user ends the run and is named."""

from pathlib import Path

import pytest

from tests.e2e.conftest import Launch
from tests.e2e.launched import CONFIG

pytestmark = [pytest.mark.timeout(900), pytest.mark.thorough]


def config_with_a_reward_that_is(broken_while: Path) -> str:
    """Two steps on rollouts, without the stage before them."""
    shared, _, stages = CONFIG.partition("  - stage_name: warmup")
    stage = stages[stages.index("  - stage_name: rft") :]
    arguments = f"reward_fn_args: {{{{broken_while: {broken_while}}}}}"
    for old, new in (
        ("tests.e2e.rewards.DigitsReward", "tests.support.model_free.reward.BrokenReward"),
        ("        taskset:\n", f"        taskset:\n          {arguments}\n"),
        ("- name: held_out\n", f"- name: held_out\n            {arguments}\n"),
        ("total_steps: 8", "total_steps: 2"),
    ):
        assert stage.count(old) == 1, old
        stage = stage.replace(old, new)
    return shared.replace("explorer:\n", "explorer:\n  max_retry_times: 0\n") + stage


def test_a_run_that_cannot_go_on_says_why_and_ends(launch: Launch, tmp_path: Path) -> None:
    """That it resumes once it is mended is shown by a run without a model."""
    flag = tmp_path / "broken"
    flag.touch()
    run = launch("broken", config_with_a_reward_that_is(flag))
    run.start()
    assert run.wait() == 1, run.text
    assert "the grader is broken" in run.text.splitlines()[-1]
    assert "log" in run.text.splitlines()[-1]
    assert run.left_running() == []
