"""A run whose launcher is killed is taken up where it was, at each stage."""

import signal

import pytest

from tests.e2e.conftest import End, Launch, end_of

pytestmark = pytest.mark.timeout(900)


@pytest.mark.thorough
def test_a_killed_launcher_leaves_nothing_and_resumes_at_both_stages(
    launch: Launch, undisturbed_end: End
) -> None:
    run = launch("launcher-killed")
    run.start()
    run.wait_until(lambda: run.has_checkpoint("warmup"), "checkpoint of the first stage")
    run.signal(signal.SIGKILL)
    run.wait()
    run.wait_for_nothing_left()
    run.start()
    run.wait_until(lambda: run.has_version("rft", 4), "version 4")
    run.signal(signal.SIGINT)
    run.wait_until(lambda: "stopping the services" in run.text, "the stop")
    run.signal(signal.SIGINT)  # a second Ctrl-C does not cut the stop short
    assert run.wait() == 130, run.text
    assert "Traceback" not in run.text
    assert "trinity run --config" in run.text.splitlines()[-1]
    assert run.left_running() == []
    run.start()
    assert run.wait() == 0, run.text
    assert "[warmup] finished before, skipped" in run.text
    assert end_of(run) == undisturbed_end
    seconds = run.seconds()
    total = seconds.pop("total")
    assert {"start", "warmup", "rft", "stop"} <= seconds.keys()
    assert total == pytest.approx(sum(seconds.values()))
