"""A plain loop of torch with verl's own advantage and loss functions.

Problems, rollouts and learning rates are those of our learner's runs: the same code makes them,
from the same seed.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from benchmarks.algorithms.beside.course import Course
from benchmarks.algorithms.beside.ours import trial_of
from benchmarks.algorithms.play import TaskPlayer
from benchmarks.algorithms.rollout import Sampler
from benchmarks.algorithms.train import BatchMaker, TrialTrainer
from services.trainer.types import TrainRow
from trinity.config.plan.stage_plan import StagePlan

LOSSES = {"grpo": "vanilla", "gspo": "gspo", "cispo": "cispo"}
"""verl's names."""
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "clip_range": ("clip_ratio_low", "clip_ratio_high"),
    "clip_range_low": ("clip_ratio_low",),
    "clip_range_high": ("clip_ratio_high",),
    "clip_ratio_c": ("clip_ratio_c",),
}
"""verl's names for our arguments; the later ones go before `clip_range`."""


def verl_settings(arguments: Mapping[str, Any]) -> dict[str, float]:
    """Returns the settings of verl's actor that have the same meaning."""
    found: dict[str, float] = {}
    for ours, theirs in SETTINGS.items():
        if (value := arguments.get(ours)) is not None:
            found |= dict.fromkeys(theirs, float(value))
    return found


class VerlLoop:
    """Trains one model.

    course = VerlLoop(trainer, "grpo", seed=1).run("addition", num_steps=20)
    """

    def __init__(self, trainer: TrialTrainer, algorithm: str, *, seed: int) -> None:
        self._job = trainer.job
        self._algorithm = algorithm
        self._num_rows = trainer.num_rows
        self._interval = trainer.eval_interval or 1
        trial = trial_of(algorithm)
        self._seed = seed
        self._plan = self._job.plan(trial, seed=seed, num_rows=self._num_rows, lag=0)
        self._maker = BatchMaker(
            job=self._job, trial=trial, plan=self._plan, seed=seed, teacher=None
        )
        self._model = AutoModelForCausalLM.from_pretrained(self._job.start, dtype=torch.float32)
        self._step = VerlStep(self._plan, self._model, LOSSES[algorithm])

    def run(self, model: str, num_steps: int) -> Course:
        """Trains from the warm start."""
        began, trained = time.process_time(), 0.0
        sampler, player = Sampler(self._job.start), TaskPlayer(self._job)
        start = player.accuracy(sampler, self._job.held_out)
        accuracies, seconds = {}, {}
        for step in range(1, num_steps + 1):
            trained -= time.process_time()
            batch, _ = self._maker.batch(sampler, step=step, version=step - 1)
            self._step.train(batch.rows, self._plan.learning_rate(step))
            sampler.load(self._model.state_dict())
            trained += time.process_time()
            if step % self._interval == 0 or step == num_steps:
                seconds[step] = round(trained, 2)
                accuracies[step] = player.accuracy(sampler, self._job.held_out)
        return Course(
            contender="verl's losses, plain loop",
            algorithm=self._algorithm,
            model=model,
            seed=self._seed,
            num_rows=self._num_rows,
            start=start,
            accuracies=accuracies,
            seconds=seconds,
            whole_seconds=round(time.process_time() - began, 1),
        )


class VerlStep:
    """A step on B rows of T tokens each after prompts of one length."""

    def __init__(self, plan: StagePlan, model: Any, loss: str) -> None:
        from verl.trainer.ppo import core_algos
        from verl.workers.config import FSDPActorConfig
        from verl.workers.config.actor import PolicyLossConfig

        algorithm, optimizer = plan.algorithm, plan.config.algorithm.optimizer
        self._model = model.train()
        self._mode = algorithm.loss_agg_mode
        self._grad_clip = plan.config.trainer.grad_clip
        self._loss = core_algos.get_policy_loss_fn(loss)
        self._compare = core_algos.compute_grpo_outcome_advantage
        self._config = FSDPActorConfig(
            strategy="fsdp2",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            policy_loss=PolicyLossConfig(loss_mode=loss),
            **verl_settings(algorithm.policy_loss_fn_args),
        )
        self._optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=optimizer.lr,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
        )

    def train(self, rows: Sequence[TrainRow], learning_rate: float) -> None:
        """Updates the model once."""
        tokens_BL, mask_BT, old_BT, rewards_BT, groups_B = as_tensors(rows)
        start = tokens_BL.shape[1] - mask_BT.shape[1]
        advantages_BT, _ = self._compare(rewards_BT, mask_BT, groups_B)
        logits_BTV = self._model(input_ids=tokens_BL).logits[:, start - 1 : -1]
        chosen_BT1 = tokens_BL[:, start:, None]
        logprobs_BT = logits_BTV.log_softmax(-1).gather(2, chosen_BT1)[..., 0]
        loss, _ = self._loss(
            old_log_prob=old_BT,
            log_prob=logprobs_BT,
            advantages=advantages_BT,
            response_mask=mask_BT,
            loss_agg_mode=self._mode,
            config=self._config,
            rollout_is_weights=None,
        )
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._grad_clip)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()


def as_tensors(
    rows: Sequence[TrainRow],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, "np.ndarray[Any, Any]"]:
    """Returns tokens, mask, old log-probabilities, rewards at the last token, and groups."""
    start = rows[0].prompt_length
    longest = max(len(row.tokens) for row in rows)
    tokens_BL = np.zeros((len(rows), longest), dtype=np.int64)
    mask_BT, old_BT, rewards_BT = (
        np.zeros((len(rows), longest - start), dtype=np.float32) for _ in range(3)
    )
    for number, row in enumerate(rows):
        assert row.prompt_length == start and row.run_reward is not None
        num_tokens = len(row.tokens) - start
        tokens_BL[number, : len(row.tokens)] = row.tokens
        mask_BT[number, :num_tokens] = row.mask
        old_BT[number, :num_tokens] = row.rollout_logprobs
        rewards_BT[number, num_tokens - 1] = row.run_reward.reward
    groups = [row.run_reward.assignment_id for row in rows if row.run_reward is not None]
    tensors = [torch.from_numpy(array) for array in (tokens_BL, mask_BT, old_BT, rewards_BT)]
    return tensors[0], tensors[1], tensors[2], tensors[3], np.array(groups)
