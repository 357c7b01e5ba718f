"""The guide's PPO example trains on its reward model's scores: answers become short."""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import REPOSITORY, Launch
from tests.e2e.launched import Launched
from tests.e2e.test_algorithms import figures
from tests.support.scorers import save_brevity_scorer, save_chatty_policy
from trinity.config.schema.experiment import deep_merge

pytestmark = [pytest.mark.timeout(900)]

STEPS = 12
GUIDE = REPOSITORY / "tests/unit/config/guide/ppo.yaml"


def small(root: Path) -> dict[str, Any]:
    """The guide's file with tiny models and data, on the processor, and larger steps."""
    guide = yaml.safe_load(GUIDE.read_text())
    above = guide["buffer"]["explorer_input"]
    for name in ("tasksets", "eval_tasksets"):
        for taskset in above[name]:
            taskset |= {"path": str(root / f"{name}.jsonl"), "split": "train"}
    policy = str(root / "policy")
    model = {"model_path": policy, "max_prompt_tokens": 16, "max_response_tokens": 7}
    scorer = {"model_path": str(root / "scorer"), "max_model_len": 64}
    scorer |= {"engine_num": 1, "dtype": "float32", "engine_type": "transformers"}
    changes = {
        "project": "e2e",
        "name": "reward_model",
        "checkpoint_root_dir": str(root / "checkpoints"),
        "seed": 5,
        "algorithm": {"optimizer": {"lr": 3.0e-4, "lr_warmup_steps_ratio": 0.0}},
        "model": {**model, "critic_model_path": policy},
        "cluster": {"gpu_per_node": 0},
        "buffer": {"total_epochs": 1, "batch_size": 32, "train_batch_size": 32},
        "explorer": {
            "eval_interval": 100,
            "rollout_model": {"engine_num": 1, "dtype": "float32", "enforce_eager": True},
        },
        "synchronizer": {"sync_offset": 0, "sync_interval": 1, "sync_timeout": 600},
        "trainer": {"dtype": "float32", "save_interval": 100, "total_steps": STEPS},
        "monitor": {"monitor_type": "tensorboard"},
    }
    found: dict[str, Any] = deep_merge(guide, changes)
    found["explorer"]["auxiliary_models"] = [scorer]
    found["trainer"]["trainer_config"]["critic"]["optim"] = {"lr": 1.0e-3}
    return found


@pytest.fixture(scope="module")
def trained(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    root = tmp_path_factory.mktemp("reward_model")
    save_brevity_scorer(root / "scorer")
    save_chatty_policy(root / "policy")
    sums = [{"prompt": f"{a}+{b}=", "answer": ""} for a in range(10, 42) for b in range(10, 42)]
    for name, rows in (("tasksets", sums), ("eval_tasksets", sums[:16])):
        (root / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run = launch("reward_model")
    run.config.write_text(yaml.safe_dump(small(root)))
    run.job_dir = root / "checkpoints/e2e/reward_model"
    run.start()
    assert run.wait() == 0, run.text
    yield run


def test_scores_rise_and_answers_become_short(trained: Launched) -> None:
    """The only reward is the classifier's score, which falls with the length of an answer."""
    steps = figures(trained, "")
    shown = [steps[step] for step in sorted(steps) if "rollout/model_score/mean" in steps[step]]
    assert len(shown) == STEPS
    scores = [figures["rollout/model_score/mean"] for figures in shown]
    assert [figures["rollout/score/mean"] for figures in shown] == scores
    assert fmean(scores[-3:]) > fmean(scores[:3])
    lengths = [figures["response_length/mean"] for figures in shown]
    assert fmean(lengths[-3:]) < fmean(lengths[:3]) - 0.5
