"""Rows without a trained token are told once with their count; a step of nothing else ends a run.

The prompts of a plan's tasks get longer by two letters at task 10: the first four steps have tasks
0 to 15, of which the last step's are all too long.
"""

from pathlib import Path

import pytest
from pydantic import JsonValue

from tests.support.model_free.experiment import experiment_plan
from tests.support.model_free.stack import model_free_services
from trinity.errors import RunFailed
from trinity.run.launch.run import LocalRun
from trinity.run.progress.reporter import make_reporter

pytestmark = [pytest.mark.timeout(600), pytest.mark.thorough]

SHORT = len("user:9+9=\n")


async def test_long_prompts_are_told_once_and_a_step_of_nothing_else_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    algorithm: dict[str, JsonValue] = {
        "algorithm_type": "grpo",
        "repeat_times": 2,
        "kl_loss_fn": "none",
    }
    plan = experiment_plan(
        tmp_path,
        name="untrained",
        model={"max_prompt_tokens": SHORT},
        buffer={"total_steps": 4},
        stages=[
            {
                "stage_name": "passes",
                "algorithm": algorithm,
                "buffer": {"trainer_input": {"experience_buffer": {"on_bad_row": "skip"}}},
            },
            {"stage_name": "ends", "algorithm": algorithm},
        ],
        monitor={"monitor_type": "tensorboard"},
    )
    run = LocalRun(plan=plan, reporter=make_reporter(plan.label), services=model_free_services())
    with pytest.raises(RunFailed, match="train step 4 has nothing to train on: no token of its 8"):
        await run.run_to_end()
    said = capsys.readouterr().out
    assert "[passes] finished" in said
    for stage in ("passes", "ends"):
        lines = [line for line in said.splitlines() if line.startswith(f"[{stage}]")]
        [named] = [line for line in lines if "longer than `model.max_prompt_tokens" in line]
        assert "4 of 8 rows" in named and "task 10 of train" in named
        [warned] = [line for line in lines if "rows have no token to train on" in line]
        assert "step 3: 4 rows" in warned
