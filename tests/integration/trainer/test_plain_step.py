"""A step of padded rows comes to the bits of one by hand; test_packed_rows.py has packed ones."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from services.trainer.types import TrainBatch
from tests.integration.trainer.learners import RATE, Build, assert_same, stepped, weights_of
from tests.unit.trainer.builders import make_plan, random_batch

if TYPE_CHECKING:
    from tensordict import TensorDict

BATCH = random_batch(16, seed=5)


def padded(batch: TrainBatch) -> dict[str, torch.Tensor]:
    """All rows in one call; columns are the tokens from the earliest response token on."""
    rows = sorted(batch.rows, key=lambda row: (row.length, row.position))
    first, longest = min(row.prompt_length for row in rows), max(row.length for row in rows)
    found = {"input_ids": torch.zeros(len(rows), longest, dtype=torch.int64)}
    for name, dtype in (("loss_mask", torch.bool), ("old", torch.float32), ("adv", torch.float32)):
        found[name] = torch.zeros(len(rows), longest - first, dtype=dtype)
    for number, row in enumerate(rows):
        response = slice(row.prompt_length - first, row.length - first)
        found["input_ids"][number, : row.length] = torch.from_numpy(row.tokens.astype(np.int64))
        mask = torch.from_numpy(row.mask)
        found["loss_mask"][number, response] = mask
        found["old"][number, response] = torch.from_numpy(row.rollout_logprobs) * mask
        found["adv"][number, response] = torch.from_numpy(row.advantages) * mask
    return found | {"temperature": torch.ones(len(rows))}


def plain_loss(
    model_output: dict[str, torch.Tensor], data: "TensorDict", dp_group: object
) -> tuple[torch.Tensor, dict[str, float]]:
    """PPO's clipped objective, averaged over the trained tokens."""
    del dp_group
    mask = data["loss_mask"]
    ratio = (torch.where(mask, model_output["log_probs"], 0.0) - data["old"]).exp()
    advantages = data["adv"]
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))
    loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * 3.0), loss)
    return (loss * (mask.float() / int(mask.sum()))).sum(), {}


def test_a_step_of_grpo_is_the_plain_one_bit_for_bit(learner_of: Build, model: Path) -> None:
    from verl.utils import tensordict_utils

    grpo = {"algorithm_type": "grpo", "repeat_times": 8, "kl_loss_fn": "none"}
    plan = make_plan(model, grpo, {"use_remove_padding": False})
    learner, by_hand = learner_of(plan), learner_of(plan)
    worker = by_hand._roles.actor.worker
    settings = {
        "first_token": min(row.prompt_length for row in BATCH.rows),
        "use_remove_padding": False,
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": len(BATCH.rows),
    }
    for _ in range(3):
        stepped(learner, BATCH)
        worker.set_loss_fn(plain_loss)
        worker.optimizer_zero_grad()
        worker.forward_backward(tensordict_utils.get_tensordict(padded(BATCH), settings))
        worker.optimizer_step({"lr": RATE})
    assert_same(weights_of(learner), weights_of(by_hand))
