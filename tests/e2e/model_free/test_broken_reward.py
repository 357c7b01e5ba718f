"""A run whose reward or workflow is broken says so once and ends, and goes on once it is mended."""

import functools
import re
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.model_free.experiment import experiment_plan
from tests.support.model_free.stack import model_free_services
from trinity.cli import experiment
from trinity.cli.main import main
from trinity.errors import RunFailed
from trinity.run.launch.run import LocalRun
from trinity.run.progress.reporter import make_reporter
from trinity.studio.generator.sources import document_of_plan

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


def test_a_workflow_that_always_raises_is_one_line_with_a_count_and_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = "tests.support.model_free.workflows.AlwaysRaises"
    plan = experiment_plan(
        tmp_path,
        buffer={"batch_size": 16, "explorer_input": {"default_workflow_type": broken}},
        monitor={"monitor_type": "none"},
    )
    for name in ("tokenizer.json", "chat_template.jinja"):
        (tmp_path / "model" / name).write_text("{}")  # these services read neither
    file = tmp_path / "broken.yaml"
    file.write_text(yaml.safe_dump(document_of_plan(plan)))
    started = functools.partial(LocalRun, services=model_free_services())
    monkeypatch.setattr(experiment, "LocalRun", started)
    monkeypatch.setattr(sys, "argv", ["trinity", "run", "--config", str(file)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = "".join(capfd.readouterr()).splitlines()
    one, counted = [line for line in said if "tasks given up" in line]
    assert "the workflow is broken at task" in one
    assert re.match(r"\d+ more like: \[rft\] explore step #: tasks given up", counted), counted
    assert said[-1].startswith("error: ") and "the workflow is broken" in said[-1]
