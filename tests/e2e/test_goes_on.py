"""A finished run goes on with a changed file, with vLLM and verl, as a user starts it."""

import pytest

from tests.e2e.conftest import End, Launch
from tests.e2e.launched import CONFIG, Launched

pytestmark = [pytest.mark.timeout(1800), pytest.mark.thorough]

SHORT = CONFIG.replace("total_steps: 8, save", "total_steps: 4, save")
FASTER = CONFIG.replace("total_steps: 8, save", "total_steps: 9, save").replace(
    "lr: 1.0e-4", "lr: 1.0e-3"
)


def rewrite(run: Launched, config: str) -> None:
    root = run.job_dir.parents[2]
    run.config.write_text(config.format(name=run.job_dir.name, root=root))


def go_on(run: Launched, *options: str) -> int:
    run.start(*options)
    return run.wait()


def test_more_steps_give_the_weights_of_a_run_that_had_them_from_the_start(
    launch: Launch, undisturbed_end: End
) -> None:
    run = launch("more-steps", SHORT)
    assert go_on(run) == 0, run.text
    assert run.summary()["steps"] == 24
    rewrite(run, CONFIG)
    assert go_on(run) == 0, run.text
    assert run.summary()["steps"] == 28
    assert run.final_weights() == undisturbed_end.weights
    assert run.rewards() == undisturbed_end.rewards
    rewrite(run, FASTER)
    assert go_on(run) == 2
    assert "algorithm.optimizer.lr: 0.001` (0.0001 before)" in run.text
    assert f"--config {run.config} --accept-changes" in run.text
    assert go_on(run, "--accept-changes") == 0, run.text
    stages = run.summary()["stages"]
    assert isinstance(stages, list)
    assert stages[-1]["changes"] == ["algorithm.optimizer.lr: 0.0001 -> 0.001 from step 9"]
    assert (run.job_dir / "curves.png").exists()
