"""What a user has to mend."""

from pathlib import Path

import pytest

from tests.e2e.conftest import Launch
from tests.e2e.launched import CONFIG

pytestmark = pytest.mark.timeout(900)


def test_a_run_that_cannot_go_on_says_why_and_resumes_when_mended(
    launch: Launch, tmp_path: Path
) -> None:
    flag = tmp_path / "broken"
    flag.touch()
    old = "default_reward_fn_type: tests.e2e.rewards.DigitsReward"
    new = "default_reward_fn_type: tests.e2e.rewards.BrokenReward"
    args = f"        taskset:\n          reward_fn_args: {{{{broken_while: {flag}}}}}\n"
    patient = "explorer:\n  max_retry_times: 0\n"
    config = CONFIG.replace(old, new).replace("        taskset:\n", args)
    config = config.replace("explorer:\n", patient, 1)
    config = config.replace(
        "eval_tasksets:\n          - name: held_out",
        f"""eval_tasksets:
          - name: held_out
            reward_fn_args: {{{{broken_while: {flag}}}}}""",
    )
    run = launch("broken", config)
    run.start()
    assert run.wait() == 1, run.text
    assert "the grader is broken" in run.text.splitlines()[-1]
    assert "log" in run.text.splitlines()[-1]
    assert run.left_running() == []
    flag.unlink()
    run.start()
    assert run.wait() == 0, run.text
