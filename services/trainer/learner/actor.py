"""The actor: its outputs for a batch, and the update of its weights."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict
from transformers import PretrainedConfig
from verl.utils.model import convert_weight_keys

from services.trainer.backend.expert_balance import BalanceShare, ExpertBalance
from services.trainer.backend.verl_worker import build_actor
from services.trainer.backend.vision import name_in_files
from services.trainer.checkpoints.lora import (
    ADAPTER_DIRECTORY,
    LoraAdapter,
    check_checkpoint_kind,
    lora_adapter_of,
)
from services.trainer.checkpoints.split import NamedSplits, SplitTensor, experts_apart
from services.trainer.learner.loss import BatchLoss, LossFunctions
from services.trainer.learner.microbatches import OutputGatherer
from services.trainer.learner.prepared_batch import MicroBatch, PreparedBatch, with_tokens
from services.trainer.learner.resume_source import (
    CheckpointContents,
    load_former_run,
    load_own_checkpoint,
    save_checkpoint,
)
from services.trainer.learner.verl_calls import (
    EngineOutputs,
    Matrix,
    VocabularyTeacher,
    WorkerCalls,
    as_array,
    on_device,
)
from services.trainer.types import Metrics, mean_over_passes
from trinity.algorithm.token_advantage.token_batch import FloatMatrix, IntVector
from trinity.config.plan.stage_plan import StagePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorUpdate:
    """The result of one actor step; matrices are [B, T], 0 for rows without trained tokens."""

    metrics: Metrics
    outputs_before_update: Mapping[str, FloatMatrix]
    """Outputs of the policy that a row's first update started from: `logprobs` and, where they were
    computed, `entropies` and `clipped`."""
    first_rows: IntVector
    """The rows of the first update, which started from the policy before the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Update:
    """One step of the optimizer."""

    metrics: Metrics
    output_names: tuple[str, ...]
    """The per-token outputs that the loss recorded."""
    compute_seconds: float


class Actor:
    """The policy of a stage. Every method is collective.

    update = actor.update(prepared, learning_rate=1e-6, kl_coef=0.001)
    tensors = actor.weights()
    """

    def __init__(self, plan: StagePlan, model_directory: Path, calls: WorkerCalls) -> None:
        self._functions = LossFunctions.from_plan(plan)
        self._loss_scale_factor = plan.loss_scale_factor
        self._num_passes = plan.config.trainer.ppo_epochs
        self._calls = calls
        self._contents = CheckpointContents.of_plan(plan)
        self.worker = build_actor(plan, model_directory)
        self.adapter = lora_adapter_of(self.worker.engine.module)
        self.teacher: VocabularyTeacher | None = None
        self._balance = self._balanced(plan)
        self._base_name = (plan.lora and plan.lora.base_model_name) or plan.model_path

    @property
    def model_config(self) -> PretrainedConfig:
        """The model's configuration, with the user's overrides applied."""
        config: PretrainedConfig = self.worker.engine.model_config.hf_config
        return config

    def compute_outputs(
        self, prepared: PreparedBatch, names: Sequence[str]
    ) -> dict[str, FloatMatrix]:
        """Computes the named outputs for each token, [B, T]."""
        return self._calls.compute_outputs(self.worker, prepared, names)

    def update(
        self,
        prepared: PreparedBatch,
        *,
        learning_rate: float,
        kl_coef: float,
        num_updates: int = 1,
        before_update: Callable[[PreparedBatch, int], PreparedBatch] = lambda rows, _: rows,
    ) -> ActorUpdate:
        """Takes `num_updates` optimizer steps for each pass over the batch, at `learning_rate`.

        Each update has its share of the rows, and its loss is normalized over them; updates without
        a token to train on are skipped. All compare the policy with the one before the step.
        `before_update` recomputes the inputs that depend on the current policy, given the rows of
        an update and its 0-based number; update 0 of all rows uses those from before the step. A
        gradient that is not finite leaves the weights unchanged; `actor/grad_norm` shows it.
        """
        started = time.perf_counter()
        parts = with_tokens(prepared.cut(num_updates), lambda rows: rows.mask_BT)
        gatherers = [OutputGatherer(part.prepared.layout, self._calls.ranks) for part in parts]
        updates: list[_Update] = []
        for number in range(self._num_passes * len(parts)):
            index, is_first_pass = number % len(parts), number < len(parts)
            rows = parts[index].prepared
            if number or len(rows.rows) < len(prepared.rows):
                rows = before_update(rows, number)
                if updates and not rows.mask_BT.any():  # all of it is rejected by now
                    continue
            gatherer = gatherers[index] if is_first_pass else None
            updates.append(self._update(rows, learning_rate, kl_coef, gatherer))
        metrics = {
            **mean_over_passes([update.metrics for update in updates]),
            "actor/lr": learning_rate,
            "actor/num_updates": float(len(updates)),
            "time/forward_backward": sum(update.compute_seconds for update in updates),
            "time/update_actor": time.perf_counter() - started,
        }
        outputs = {name: prepared.layout.zeros() for name in updates[0].output_names}
        for name, matrix_BT in outputs.items():
            for part, gatherer in zip(parts, gatherers, strict=True):
                matrix_BT[part.numbers] = gatherer.reduce(name)
        return ActorUpdate(
            metrics=metrics, outputs_before_update=outputs, first_rows=parts[0].numbers
        )

    def _update(
        self,
        prepared: PreparedBatch,
        learning_rate: float,
        kl_coef: float,
        gatherer: OutputGatherer | None,
    ) -> _Update:
        """Adds up the gradients of all micro-batches, then takes one optimizer step."""
        started = time.perf_counter()
        loss = self._loss_of(prepared, kl_coef)
        outputs = EngineOutputs(entropy_gradient=self._functions.entropy_loss is not None)
        matrices = _matrices(prepared)
        parts: list[MicroBatch] = []
        with self._lessons() as before, self._balancing(prepared):
            for part in self._calls.add_gradients(
                self.worker, loss, prepared, matrices, outputs, before
            ):
                parts.append(part)
                if gatherer is None:
                    continue
                for name, values_NC in loss.outputs.items():
                    gatherer.add_micro_batch(name, part, as_array(values_NC))
        computed = time.perf_counter()
        step = self.worker.optimizer_step({"lr": float(learning_rate)})
        sums = loss.sums.all_reduce(self._calls.ranks)
        metrics = {f"actor/{name}": value for name, value in sums.items()}
        metrics["actor/grad_norm"] = float(step["grad_norm"])
        if self.worker.engine.scaler is not None:
            metrics["actor/loss_scale"] = self.worker.engine.scaler.factor
        metrics |= self._calls.work_metrics(self.worker, prepared.rows, parts)
        return _Update(
            metrics=metrics,
            output_names=tuple(sorted(loss.outputs)),
            compute_seconds=computed - started,
        )

    def _balanced(self, plan: StagePlan) -> ExpertBalance | None:
        """Returns the losses of the gates, which the engine then has; None without any."""
        algorithm, engine = plan.config.algorithm, self.worker.engine
        aux_coef, z_coef = algorithm.router_aux_loss_coef, algorithm.router_z_loss_coef
        if not aux_coef and not z_coef:
            return None
        engine.balance = ExpertBalance(engine.module, aux_coef=aux_coef, z_coef=z_coef)
        balance: ExpertBalance = engine.balance
        return balance

    @contextmanager
    def _balancing(self, prepared: PreparedBatch) -> Iterator[None]:
        """Lets the gates add their losses to the batch's."""
        if self._balance is None:
            yield
            return
        is_trained_B = prepared.mask_BT.any(-1)
        lengths = [row.length for row in prepared.rows]
        num_tokens = float(np.dot(is_trained_B, lengths)) or 1.0
        num_ranks = self._calls.ranks.num_ranks
        self._balance.share = BalanceShare(num_tokens=num_tokens, scale=float(num_ranks))
        try:
            yield
        finally:
            self._balance.share = None

    @contextmanager
    def _lessons(self) -> Iterator[Callable[[TensorDict], None] | None]:
        """Yields a hook to run before each micro-batch, which queries the teacher, if any."""
        teacher = self.teacher
        if teacher is None:
            yield None
            return
        with on_device(teacher.worker):
            yield lambda data: teacher.teach(data, self.worker)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields all weights whole, by their Hugging Face names; they alias the live ones."""
        tied = self._tied_names()
        parameters = (
            self.worker.engine.get_per_tensor_param()[0]
            if self.adapter is None
            else self.adapter.merged_weights()
        )
        for name, tensor in parameters:
            if name not in tied:
                yield name_in_files(name, self.model_config.model_type), tensor.detach().cpu()

    def split_weights(self) -> NamedSplits | None:
        """Yields the same tensors as the ranks hold them; None for one rank."""
        if self._calls.ranks.num_ranks == 1:
            return None
        return self._split_weights() if self.adapter is None else self._split_merged(self.adapter)

    def _split_merged(self, adapter: LoraAdapter) -> NamedSplits:
        tied, kind = self._tied_names(), self.model_config.model_type
        for name, tensor in adapter.split_weights(self._calls.ranks):
            if name not in tied:
                yield name_in_files(name, kind), tensor

    def _split_weights(self) -> NamedSplits:
        module, tied = self.worker.engine.module, self._tied_names()
        for key, tensor in convert_weight_keys(module.state_dict(), module).items():
            split = SplitTensor.of(tensor, self._calls.ranks)
            for name, part in experts_apart(key, split, module.config.model_type):
                if name not in tied:
                    yield name_in_files(name, module.config.model_type), part

    def _tied_names(self) -> set[str]:
        """Returns the names that stand for tensors of other names."""
        module = self.worker.engine.module
        return set(module.all_tied_weights_keys) if module.config.tie_word_embeddings else set()

    def _loss_of(self, prepared: PreparedBatch, kl_coef: float) -> BatchLoss:
        return BatchLoss(
            self._functions,
            prepared.totals(prepared.mask_BT, self._loss_scale_factor),
            step=prepared.batch.step,
            kl_coef=kl_coef,
            num_ranks=self._calls.ranks.num_ranks,
        )

    def save(self, directory: Path, step: int) -> None:
        """Writes this rank's part of the full state: weights, optimizer, random states."""
        save_checkpoint(self.worker, directory, step, self._calls, self._contents.saved)
        if self.adapter is not None:
            with on_device(self.worker):
                self.adapter.save(
                    directory / ADAPTER_DIRECTORY,
                    base_model=self._base_name,
                    writes=self._calls.ranks.is_first,
                )

    def load(self, directory: Path) -> None:
        """Continues from the files that `save` wrote.

        Raises: UserError if only one of the checkpoint and this model has an adapter.
        """
        check_checkpoint_kind(directory, self.adapter)
        load_own_checkpoint(self.worker, directory, self._calls, self._contents.loaded)

    def load_former_run(self, directory: Path) -> None:
        """Loads the policy of a former run."""
        load_former_run(self.worker, directory, self._calls, self._contents.loaded)


def _matrices(prepared: PreparedBatch) -> dict[str, Matrix]:
    matrices: dict[str, Matrix] = {
        "loss_mask": prepared.mask_BT,
        "old_logprobs": prepared.old_logprobs_BT,
        "advantages": prepared.advantages_BT,
    }
    if prepared.reference_logprobs_BT is not None:
        matrices["reference_logprobs"] = np.where(
            prepared.mask_BT, prepared.reference_logprobs_BT, 0.0
        )
    if prepared.corrections_BT is not None:
        matrices["corrections"] = prepared.corrections_BT
    if prepared.selected_BT is not None:
        matrices["chosen"] = prepared.selected_BT
    return matrices
