"""A process that trains as a rank of a gang and leaves what it came to; run by a test."""

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from services.trainer.types import TrainBatch
from tests.integration.trainer.learners import state_of
from tests.integration.trainer.shared_sequences import (
    SHARED_CASES,
    parts_in_the_wrong_order,
    step_arrays,
)
from tests.integration.trainer.vision_rows import RANKS_CASES
from tests.unit.trainer.builders import grouped, make_plan, random_batch, random_pairs
from trinity.config.plan.stage_plan import StagePlan

if TYPE_CHECKING:
    from services.trainer.checkpoints.checkpoints import CheckpointStore
    from services.trainer.collectives import Ranks
    from services.trainer.learner.learner import Learner

NUM_STEPS = 4
STATE = "state/"
SAVED_STEP = 2
NUM_ROWS = 9
RATE = 1e-3
CONTROL = "actor and reference"
STEERED = {"kl_coef": 0.1, "adaptive": True, "target_kl": 1e-3, "horizon": 90}
POLICY_FIGURES = ("actor/loss", "actor/grad_norm")


@dataclass(frozen=True, kw_only=True)
class Case:
    """An algorithm to be split over ranks."""

    algorithm: Mapping[str, object]
    trainer: Mapping[str, object] = field(default_factory=dict)
    model: Mapping[str, object] = field(default_factory=dict)
    figures: tuple[str, ...] = POLICY_FIGURES
    of_pairs: bool = False
    of_groups: bool = False
    """True if rows of a group have one prompt."""

    def plan(self, model: Path, max_tokens: int) -> StagePlan:
        trainer = {**self.trainer, "max_token_len_per_gpu": max_tokens}
        return make_plan(model, self.algorithm, trainer, self.model)

    def batch(self, step: int) -> TrainBatch:
        make = random_pairs if self.of_pairs else random_batch
        batch = make(NUM_ROWS, seed=step, step=step)
        return grouped(batch) if self.of_groups else batch


CASES = {
    "grpo": Case(
        algorithm={"algorithm_type": "grpo", "repeat_times": 8},
        of_groups=True,
        figures=(*POLICY_FIGURES, "actor/ppo_kl", "actor/kl_loss", "off_policy/ratio/p90"),
    ),
    "corrected": Case(
        algorithm={
            "algorithm_type": "grpo",
            "repeat_times": 8,
            "bypass_old_logprobs": False,
            "rollout_correction": {
                "rollout_is": "sequence",
                "rollout_is_batch_normalize": True,
                "rollout_rs": "token_k1",
                "rollout_rs_threshold": "0.2_5.0",
            },
        },
        figures=(*POLICY_FIGURES, "off_policy/mask_fraction", "rollout_corr/rollout_is_mean"),
    ),
    "moving": Case(
        algorithm={
            "algorithm_type": "grpo",
            "repeat_times": 8,
            "kl_loss_fn": "k2",
            "kl_loss_fn_args": {"kl_coef": 0.1},
            "reference_interval": 1,
            "reference_decay": 0.5,
        },
        figures=(*POLICY_FIGURES, "actor/kl_loss"),
    ),
    "chosen": Case(
        algorithm={
            "algorithm_type": "grpo",
            "repeat_times": 8,
            "bypass_old_logprobs": False,
            "policy_loss_fn": "clip_cov",
            "policy_loss_fn_args": {"clip_cov_ratio": 0.2, "clip_cov_lb": 0.0},
        },
        figures=(*POLICY_FIGURES, "actor/pg_clipfrac"),
    ),
    "followed": Case(
        algorithm={
            "algorithm_type": "kto",
            "repeat_times": 4,
            "optimizer": {"lr": 1e-3, "optimizer_type": "sgd"},
        },
        trainer={"ppo_epochs": 3},
        figures=(*POLICY_FIGURES, "advantage/kto/divergence"),
    ),
    "ppo": Case(
        algorithm={
            "algorithm_type": "ppo",
            "kl_penalty_fn": "k2",
            "kl_penalty_fn_args": STEERED,
            "kl_loss_fn": "k2",
            "kl_loss_fn_args": STEERED,
        },
        trainer={"critic_warmup": 1},
        figures=(
            "critic/vf_loss",
            "critic/grad_norm",
            "critic/returns/mean",
            "advantage/kl",
            "advantage/kl_coef",
        ),
    ),
    "passes": Case(
        algorithm={
            "algorithm_type": "ppo",
            "optimizer": {"lr": 1e-3, "optimizer_type": "sgd"},
        },
        trainer={"ppo_epochs": 2, "critic": {"ppo_epochs": 2}},
        of_groups=True,
        figures=(*POLICY_FIGURES, "actor/ppo_kl", "critic/vf_loss"),
    ),
    "groups": Case(
        algorithm={"algorithm_type": "grpo", "repeat_times": 8},
        trainer={"fsdp_size": 1, "param_offload": True, "optimizer_offload": True},
    ),
    "lora": Case(
        algorithm={"algorithm_type": "grpo", "repeat_times": 8, "kl_loss_fn": "k2"},
        model={"lora_configs": [{"lora_rank": 4, "lora_alpha": 8}]},
        figures=(*POLICY_FIGURES, "actor/kl_loss"),
    ),
    "lora from groups": Case(
        algorithm={"algorithm_type": "grpo", "repeat_times": 8, "kl_loss_fn": "k2"},
        trainer={"fsdp_size": 1, "param_offload": True, "optimizer_offload": True},
        model={"lora_configs": [{"lora_rank": 4, "target_modules": "q_proj,v_proj"}]},
        figures=(*POLICY_FIGURES, "actor/kl_loss"),
    ),
    "dpo": Case(
        algorithm={"algorithm_type": "dpo"},
        figures=(*POLICY_FIGURES, "actor/accuracy_mean"),
        of_pairs=True,
    ),
}


RESIZED = ("ppo", "passes", "groups", "lora", "moving")
"""Cases whose checkpoints go to another number of ranks."""


def main(model: Path, output: Path, former: Path | None = None) -> None:
    """Every case: all steps, then those after the checkpoint again. The first rank saves it all.

    With `former`, a folder of checkpoints by case, it only loads them.
    """
    warnings.simplefilter("ignore")
    from services.trainer.collectives import join_gang
    from services.trainer.learner.learner import make_deterministic

    make_deterministic(num_threads=1)
    ranks = join_gang(timedelta(seconds=60))
    found = (
        _train_all(model, output.parent, ranks)
        if former is None
        else _load_all(model, former, ranks)
    )
    if ranks.is_first:
        np.savez(output, **found)  # type: ignore[arg-type]
    ranks.barrier()


def _train_all(model: Path, folder: Path, ranks: "Ranks") -> dict[str, npt.NDArray[np.generic]]:
    found: dict[str, npt.NDArray[np.generic]] = {}
    for name, case in CASES.items():
        arrays = _train_twice(case, model, folder / name, ranks)
        found |= {f"{name}/{key}": array for key, array in arrays.items()}
    for name, shared in SHARED_CASES.items():
        of_shared = step_arrays(shared, model, ranks, ranks.num_ranks)
        found |= {f"shared/{name}/{key}": array for key, array in of_shared.items()}
    for name, of_images in RANKS_CASES.items():
        gradients = of_images.gradients(folder / "vision", ranks)
        found |= {f"vision/{name}/{key}": array for key, array in gradients.items()}
    with parts_in_the_wrong_order():
        of_shared = step_arrays(SHARED_CASES[CONTROL], model, ranks, ranks.num_ranks)
    return found | {f"control/{CONTROL}/{key}": array for key, array in of_shared.items()}


def _load_all(model: Path, former: Path, ranks: "Ranks") -> dict[str, npt.NDArray[np.generic]]:
    found: dict[str, npt.NDArray[np.generic]] = {}
    for name in RESIZED:
        arrays = _load(CASES[name], model, checkpoint_of(former, name), ranks)
        found |= {f"{name}/{key}": array for key, array in arrays.items()}
    return found


def checkpoint_of(folder: Path, name: str) -> Path:
    """The one of that case."""
    return folder / name / "checkpoints" / f"step-{SAVED_STEP}-1"


def _load(
    case: Case, model: Path, checkpoint: Path, ranks: "Ranks"
) -> dict[str, npt.NDArray[np.generic]]:
    from services.trainer.learner.learner import Learner

    learner = Learner(plan=case.plan(model, max_tokens=100), model_directory=model, ranks=ranks)
    learner.load(checkpoint)
    return _in_state(learner)


def _in_state(learner: "Learner") -> dict[str, npt.NDArray[np.generic]]:
    return {f"{STATE}{name}": array for name, array in state_of(learner).items()}


def _train_twice(
    case: Case, model: Path, directory: Path, ranks: "Ranks"
) -> dict[str, npt.NDArray[np.generic]]:
    from services.trainer.checkpoints.checkpoints import CheckpointStore
    from services.trainer.checkpoints.dealt import root_of_learner
    from services.trainer.checkpoints.weights import weights_hash
    from services.trainer.learner.learner import Learner

    store = CheckpointStore(root=directory / "checkpoints", stage="rft", ranks=ranks)
    plan = case.plan(model, max_tokens=100)
    learner = Learner(plan=plan, model_directory=model, ranks=ranks)
    figures, checkpoint, state = _train(case, learner, store)
    weights = dict(learner.weights())
    resumed = Learner(plan=plan, model_directory=model, ranks=ranks)
    resumed.load(checkpoint)
    if plan.lora is not None:
        store.check_adapter_base(resumed, checkpoint)
    for step in range(SAVED_STEP + 1, NUM_STEPS + 1):
        outcome = resumed.train_step(case.batch(step), RATE, RATE)
    is_same = weights_hash(dict(resumed.weights())) == weights_hash(weights)
    assert root_of_learner(resumed, ranks, hash_name="blake3") == weights_hash(
        dict(resumed.weights())
    )
    return {
        **{name: np.array(values) for name, values in figures.items()},
        "rows": np.array(sorted(outcome.rows)),
        "resumed_is_same": np.array(is_same),
        **state,
    }


def _train(
    case: Case, learner: "Learner", store: "CheckpointStore"
) -> tuple[dict[str, list[float]], Path, dict[str, npt.NDArray[np.generic]]]:
    """Figures of every step, and the checkpoint on the way with what it holds."""
    checkpoint, state = Path(), {}
    figures: dict[str, list[float]] = {name: [] for name in case.figures}
    for step in range(1, NUM_STEPS + 1):
        outcome = learner.train_step(case.batch(step), RATE, RATE)
        for name in case.figures:
            figures[name].append(outcome.metrics[name])
        if step == SAVED_STEP:
            checkpoint = store.write(learner, step=step, incarnation=1).path
            state = _in_state(learner)
    return figures, checkpoint, state


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
