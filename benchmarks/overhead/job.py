"""The job that every contender does: GRPO steps on the addition tasks, without evaluation."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from omegaconf import OmegaConf

from trinity.config.loading.load import load_config
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.planning import plan_experiment

STAGE = "rft"
NUM_UNCOUNTED = 4
"""First steps, in which caches fill; they are not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadJob:
    """A model and how much of it there is to do."""

    name: str
    model: Path
    data: Path
    num_tasks: int
    """A step."""
    repeat_times: int
    num_steps: int
    work: Path
    has_images: bool = False

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads the job that another process passed on."""
        given: dict[str, Any] = json.loads(text)
        return cls(**given | {name: Path(given[name]) for name in ("model", "data", "work")})

    def write_config(self, name: str, **synchronizer: object) -> Path:
        """The YAML file for `trinity run`, with these settings of the synchronizer."""
        path = self.work / f"{name}.yaml"
        OmegaConf.save(OmegaConf.create(self._values(name, synchronizer)), path)
        return path

    def plan(self) -> StagePlan:
        """The stage that the configuration plans."""
        return plan_experiment(load_config(self.write_config("plan"))).stages[0]

    def _values(self, name: str, synchronizer: Mapping[str, object]) -> Mapping[str, object]:
        taskset = {
            "name": "sums",
            "path": str(self.data),
            "format": {
                "prompt_key": "question",
                "response_key": "answer",
                **({"image_key": "images"} if self.has_images else {}),
            },
        }
        return {
            "project": "overhead",
            "name": name,
            "checkpoint_root_dir": str(self.work / "checkpoints"),
            "model": {
                "model_path": str(self.model),
                "max_prompt_tokens": 40 if self.has_images else 26,
                "max_response_tokens": 6,
            },
            "explorer": {
                "runner_per_model": 256,
                "eval_on_startup": False,
                "rollout_model": {
                    "dtype": "float32",
                    "enforce_eager": True,
                    "extra_engine_args": {"max_num_seqs": 256},
                },
            },
            "trainer": {"dtype": "float32", "max_token_len_per_gpu": 8192, "save_interval": 0},
            "synchronizer": {"sync_interval": 1, **synchronizer},
            "stages": [
                {
                    "stage_name": STAGE,
                    "mode": "both",
                    "algorithm": {
                        "algorithm_type": "grpo",
                        "repeat_times": self.repeat_times,
                        "kl_loss_fn": "none",
                        "optimizer": {"lr": 1.0e-4},
                    },
                    "buffer": {
                        "batch_size": self.num_tasks,
                        "total_steps": self.num_steps,
                        "explorer_input": {
                            "default_workflow_type": "simple_workflow",
                            "default_reward_fn_type": "exact_match_reward",
                            "taskset": taskset,
                        },
                    },
                }
            ],
        }
