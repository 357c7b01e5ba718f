"""One rank's share of training: a step takes a whole optimizer batch and moves the weights once."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict

from services.trainer.loss import BatchLoss, LossRecipe, RowStatistics
from services.trainer.ranks import Ranks
from services.trainer.rows import TrainBatch, TrainRow, micro_batches, rank_slice
from services.trainer.tensors import response_columns, to_tensors
from services.trainer.worker import build_actor, build_reference, packs_rows
from trinity.algorithm.aggregation import BatchTotals
from trinity.config import StagePlan

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What a step gave: figures of the whole batch, and what was learned about its rows."""

    metrics: Metrics
    rows: dict[int, RowStatistics]
    """By position in the batch."""


class ReferenceOutput:
    """Takes the place of a loss where only the log-probabilities are wanted."""

    def __init__(self) -> None:
        self.logprobs_BT = torch.zeros(())

    def __call__(
        self, model_output: dict[str, torch.Tensor], data: TensorDict, dp_group: object
    ) -> tuple[torch.Tensor, Metrics]:
        del dp_group
        mask_BT = data["loss_mask"]
        first = int(data["first_token"])
        logprobs_BT = response_columns(model_output["log_probs"], first, mask_BT.shape[1])
        self.logprobs_BT = torch.where(mask_BT, logprobs_BT, 0.0)
        return torch.zeros(()), {}


class Learner:
    """The actor of a stage, with a reference if its loss needs one. Every method is collective.

    learner = Learner(plan=plan, model_directory=start, ranks=ranks)
    outcome = learner.train_step(batch, learning_rate=plan.learning_rate(batch.step))
    tensors = learner.weights()
    """

    def __init__(
        self,
        *,
        plan: StagePlan,
        model_directory: Path,
        ranks: Ranks,
        on_part: Callable[[], None] = lambda: None,
    ) -> None:
        seed_everything(plan.config.seed)
        self._ranks = ranks
        self._on_part = on_part
        self._recipe = LossRecipe.of(plan)
        self._max_tokens = plan.max_token_len_per_gpu
        self._max_response_tokens = plan.max_response_tokens
        self._packed = packs_rows(plan)
        self._actor = build_actor(plan, model_directory)
        self._reference = build_reference(plan, model_directory) if plan.needs_reference else None

    def train_step(self, batch: TrainBatch, learning_rate: float) -> StepOutcome:
        """Gradients of all micro-batches, then one step of the optimizer at `learning_rate`.

        A gradient that is not finite moves nothing; `actor/grad_norm` then says so.
        """
        started = time.perf_counter()
        loss = BatchLoss(self._recipe, self._totals_of(batch), self._ranks.num_ranks)
        self._actor.set_loss_fn(loss)
        rows: dict[int, RowStatistics] = {}
        self._actor.optimizer_zero_grad()
        for part, is_last in self._parts(batch):
            data = self._tensors_of(part)
            self._actor.engine.module.set_requires_gradient_sync(is_last)
            num_before = len(loss.row_statistics)
            self._actor.forward_backward(data)
            self._on_part()
            learned = loss.row_statistics[num_before : num_before + len(part)]
            rows |= {row.position: found for row, found in zip(part, learned, strict=False)}
        computed = time.perf_counter()
        step = self._actor.optimizer_step({"lr": float(learning_rate)})
        metrics = self._whole_batch(loss)
        metrics["actor/grad_norm"] = float(step["grad_norm"])
        metrics["actor/lr"] = learning_rate
        metrics["time/forward_backward"] = computed - started
        metrics["time/update_actor"] = time.perf_counter() - started
        return StepOutcome(metrics=metrics, rows=self._all_rows(rows, batch))

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All weights by their Hugging Face names, whole; they alias the live ones."""
        module = self._actor.engine.module
        tied = set(module._tied_weights_keys or ()) if module.config.tie_word_embeddings else set()
        parameters, _ = self._actor.engine.get_per_tensor_param()
        for name, tensor in parameters:
            if name not in tied:
                yield name, tensor.detach().cpu()

    def save(self, directory: Path, step: int) -> None:
        """Write this rank's part of the full state: weights, optimizer, random states."""
        self._actor.save_checkpoint(str(directory), global_step=step)

    def load(self, directory: Path) -> None:
        """Read what `save` wrote; only from a directory whose manifest was verified."""
        self._actor.load_checkpoint(str(directory))

    def _totals_of(self, batch: TrainBatch) -> BatchTotals:
        return BatchTotals(
            num_tokens=batch.num_trained_tokens,
            num_sequences=batch.num_trained_rows,
            max_response_tokens=self._max_response_tokens,
        )

    def _parts(self, batch: TrainBatch) -> Iterator[tuple[Sequence[TrainRow], bool]]:
        """This rank's micro-batches, filled up with empty ones to the busiest rank's number."""
        share = rank_slice(batch.rows, self._ranks.rank, self._ranks.num_ranks)
        trained = [row for row in share if row.mask.any()]
        parts = micro_batches(trained, self._max_tokens)
        num_parts = max(1, int(self._ranks.max(len(parts))))
        for index in range(num_parts):
            yield parts[index] if index < len(parts) else [], index == num_parts - 1

    def _tensors_of(self, rows: Sequence[TrainRow]) -> TensorDict:
        with_entropy = self._recipe.entropy_coef != 0
        data = to_tensors(rows, packed=self._packed, calculate_entropy=with_entropy)
        if self._reference is not None:
            output = ReferenceOutput()
            self._reference.set_loss_fn(output)
            self._reference.infer_batch(data.clone(recurse=False))
            data["reference_logprobs"] = output.logprobs_BT
        return data

    def _whole_batch(self, loss: BatchLoss) -> Metrics:
        """Sums of all ranks; ranks without rows had an empty call, so all have the same names."""
        names = sorted(loss.sums)
        sums = self._ranks.sum([float(loss.sums[name]) for name in names])
        metrics = {f"actor/{name}": value for name, value in zip(names, sums, strict=True)}
        if self._recipe.has_rollout:
            largest = self._ranks.max(float(loss.largest_logprob_difference))
            metrics["actor/rollout_logprob_diff_max"] = largest
        return metrics

    def _all_rows(
        self, rows: dict[int, RowStatistics], batch: TrainBatch
    ) -> dict[int, RowStatistics]:
        """What every rank learned about its rows: each adds to zeros where the others' rows are."""
        if self._ranks.num_ranks == 1:
            return rows
        positions = [row.position for row in batch.rows]
        nothing = RowStatistics(mean_ratio=0.0, advantage=0.0)
        found = [rows.get(position, nothing) for position in positions]
        present = self._ranks.sum([float(position in rows) for position in positions])
        ratios = self._ranks.sum([statistics.mean_ratio for statistics in found])
        advantages = self._ranks.sum([statistics.advantage for statistics in found])
        return {
            position: RowStatistics(mean_ratio=ratio, advantage=advantage)
            for position, known, ratio, advantage in zip(
                positions, present, ratios, advantages, strict=True
            )
            if known
        }


def seed_everything(seed: int) -> None:
    """Nothing of training is random, but what users bring may be."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def make_deterministic(num_threads: int) -> None:
    """The same arithmetic in the same order, as far as the machine allows; once a process."""
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
