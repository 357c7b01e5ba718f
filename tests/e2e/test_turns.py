"""Real engine and trainer by turns on one device: the same weights as side by side.

On a processor nothing moves; the order, the lock and the sleep of the engine's scheduler are real.
"""

import pytest

from tests.e2e.conftest import Launch
from tests.e2e.launched import CONFIG

pytestmark = [pytest.mark.timeout(1800), pytest.mark.thorough]

SHORT = (
    CONFIG.replace("{{total_steps: 20, save_interval: 8}}", "{{total_steps: 4, save_interval: 8}}")
    .replace("{{total_steps: 8, save_interval: 3}}", "{{total_steps: 3, save_interval: 3}}")
    .replace("explorer: {{eval_interval: 4}}", "explorer: {{eval_interval: 2}}")
)


@pytest.mark.parametrize("level", [1, 2])
def test_a_run_by_turns_ends_in_the_weights_of_one_side_by_side(launch: Launch, level: int) -> None:
    apart = launch("turns-apart", SHORT)
    if not (apart.job_dir / "summary.json").exists():
        apart.start()
        assert apart.wait() == 0, apart.text
    by_turns = SHORT.replace("mode: both", "mode: colocate").replace(
        "enforce_eager: true", f"enforce_eager: true, sleep_level: {level}"
    )
    turns = launch(f"turns-{level}", by_turns)
    turns.start()
    assert turns.wait() == 0, turns.text
    assert turns.final_weights() == apart.final_weights()
    assert turns.rewards() == apart.rewards()
    assert (turns.job_dir / "device" / "gpu-0.lock").read_bytes() == b"", "no process has it"


def test_unfinished_rollouts_of_a_real_engine_go_on_after_the_trainers_turn(launch: Launch) -> None:
    """Two tasks at a time: those of the next step are under way when a step is complete."""
    ahead = (
        SHORT.replace("mode: both", "mode: colocate")
        .replace("explorer: {{eval_interval: 2}}", "explorer: {{runner_per_model: 2}}")
        .replace("stages:\n", "log: {{level: DEBUG}}\nsynchronizer: {{sync_offset: 1}}\nstages:\n")
    )
    turns = launch("turns-ahead", ahead)
    turns.start()
    assert turns.wait() == 0, turns.text
    assert len(turns.rewards()) == 3
    logs = "".join(log.read_text() for log in turns.job_dir.rglob("explorer*.log"))
    assert "the engine sleeps with unfinished runs" in logs
    assert "a run failed" not in logs
