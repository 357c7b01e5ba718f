"""Scripts of veRL with each of its reward managers give, in a run, the rewards that veRL gives.

The engine's answers are three letters and an end: four tokens, and never right.
"""

import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.support.model_free.model import write_model
from tests.support.model_free.stack import model_free_services
from tests.unit.verl.builders import converted, missing
from trinity.config.planning import plan_experiment
from trinity.config.schema.experiment import Config, deep_merge
from trinity.run.launch.run import LocalRun
from trinity.run.progress.reporter import make_reporter

pytestmark = [pytest.mark.timeout(600), pytest.mark.thorough]

SCRIPT = """\
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    data.train_files={rows}/train.parquet data.val_files= \\
    data.train_batch_size=4 data.max_prompt_length=64 data.max_response_length=8 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.rollout.n=2 \\
    trainer.n_gpus_per_node=0 trainer.logger=console {given}
"""
OWN_FUNCTIONS = """
def by_answer(data_source, solution_str, ground_truth, extra_info=None, *, least):
    assert (data_source, ground_truth) == ("math_dapo", "7")
    return {"score": least + extra_info["bonus"], "acc": len(solution_str) == 3, "pred": "x"}


def by_lists(data_sources, solution_strs, ground_truths, extra_infos=None):
    assert [data_sources, ground_truths] == [["math_dapo"], ["7"]]
    return [len(text) / 8 + info["bonus"] for text, info in zip(solution_strs, extra_infos)]
"""
OVERLONG = (
    " reward_model.overlong_buffer.enable=True reward_model.overlong_buffer.len=6"
    " reward_model.overlong_buffer.penalty_factor=0.5"
)
OWN = " custom_reward_function.path={folder}/own_scores.py custom_reward_function.name="
PENALTY = 0.5 * (4 - (8 - 6)) / 6
"""veRL's: four tokens reach by two into the buffer of six below the longest answer of eight."""
STAGES = {
    "naive": ("reward_model.reward_manager=naive", -1.0),
    "dapo": ("reward_model.reward_manager=dapo" + OVERLONG, -1.0 - PENALTY),
    "prime": (
        f"reward_model.reward_manager=prime {OWN}by_answer"
        " +custom_reward_function.reward_kwargs.least=0.25",
        0.25 + 0.5,
    ),
    "batch": (f"reward_model.reward_manager=batch {OWN}by_lists", 3 / 8 + 0.5),
    "dapo_own": (
        f"reward_model.reward_manager=dapo {OWN}by_answer"
        " +custom_reward_function.reward_kwargs.least=0.25" + OVERLONG,
        0.25 + 0.5 - PENALTY,
    ),
}
"""For each stage what its script says beside the others, and the reward of every answer."""


def write_rows(folder: Path) -> None:
    rows = [
        {
            "data_source": "math_dapo",
            "prompt": [{"role": "user", "content": f"{index} = ?"}],
            "reward_model": {"style": "rule", "ground_truth": "7"},
            "extra_info": {"index": index, "bonus": 0.5},
        }
        for index in range(8)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "train.parquet")


def stage_of(folder: Path, name: str) -> dict[str, object]:
    """A script's conversion as one stage of a single step."""
    given = STAGES[name][0].format(folder=folder)
    result = converted(SCRIPT.format(rows=folder, given=given), folder, name=f"{name}.sh")
    assert missing(result) == []
    sections = ("algorithm", "buffer", "data_processor")
    stage: dict[str, object] = {key: result.values.get(key, {}) for key in sections}
    no_reference = {"kl_loss_fn": "none"}
    return deep_merge(
        stage,
        {
            "stage_name": name,
            "algorithm": no_reference,
            "buffer": {"total_steps": 1, "total_epochs": 1},
        },
    )


async def test_each_reward_manager_gives_the_rewards_of_verl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path)
    (tmp_path / "own_scores.py").write_text(OWN_FUNCTIONS)
    monkeypatch.setenv("TRINITY_PLUGIN_DIRS", str(tmp_path))
    config = Config.model_validate(
        {
            "project": "model-free",
            "name": "managers",
            "checkpoint_root_dir": str(tmp_path / "checkpoints"),
            "model": {
                "model_path": str(write_model(tmp_path / "model")),
                "max_prompt_tokens": 64,
                "max_response_tokens": 8,
            },
            "stages": [stage_of(tmp_path, name) for name in STAGES],
            "explorer": {"eval_on_startup": False},
            "trainer": {"dtype": "float32"},
            "monitor": {"monitor_type": "none"},
        }
    )
    plan = plan_experiment(config)
    run = LocalRun(plan=plan, reporter=make_reporter(plan.label), services=model_free_services())
    summary = await run.run_to_end()
    assert [len(stage.rewards) for stage in summary.stages] == [1] * len(STAGES)
    assert shown_rewards(capsys.readouterr().out) == {
        name: pytest.approx([reward] * 3, abs=1e-5) for name, (_, reward) in STAGES.items()
    }


def shown_rewards(text: str) -> dict[str, list[float]]:
    """Rewards, operators' changes included, of the samples that each stage shows."""
    parts = re.split(r"\[(\w+)\] samples before training:\n", text)[1:]
    return {
        name: [float(reward) for reward in re.findall(r"\(reward (\S+)\)", samples)]
        for name, samples in zip(parts[::2], parts[1::2], strict=True)
    }
