"""Calls verl's workers over the micro-batches of a batch, and makes the tensors they take."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils
from verl.utils.device import get_device_name, get_torch_device
from verl.workers.engine_workers_tinker import TinkerTrainingWorker

from services.trainer.backend.row_engine import PROMPT_OWNERS, Lesson
from services.trainer.backend.verl_worker import build_teacher, packs_rows, shares_prompts
from services.trainer.backend.vision import IMAGES, VisionInputs
from services.trainer.collectives import Ranks
from services.trainer.learner.microbatches import (
    MicroBatchLimits,
    MicroBatchSplitter,
    OutputGatherer,
    prompt_owners,
    work_metrics,
)
from services.trainer.learner.prepared_batch import MicroBatch, PreparedBatch, ResponseLayout
from services.trainer.types import Metrics, TrainRow
from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError
from trinity.runtime.life import LifeSigns

PAD = 0
"""Any token does: it is never attended to."""
SHORTEST_ROW = 2
"""Tokens of a dummy row: one of a prompt, and one of a response."""

Matrix = npt.NDArray[np.bool_] | npt.NDArray[np.float64]
OUTPUT_NAMES = {
    "logprobs": "log_probs",
    "entropies": "entropy",
    "collision": "sum_pi_squared",
    "discriminator": "discriminator",
    "values": "values",
}
"""The engines' names of our outputs."""
LossFn = Callable[
    [dict[str, torch.Tensor], TensorDict, object], tuple[torch.Tensor, dict[str, float]]
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOutputs:
    """Optional outputs of an engine besides the log-probabilities of the tokens taken."""

    entropy_gradient: bool = False
    sum_squared_probs: bool = False
    """Sum of the squared probabilities at each token."""
    discriminator: bool = False
    """The policy's mean of its entropy discriminator at each token."""


class MicroBatchBuilder:
    """Makes the micro-batches of one batch.

    builder = MicroBatchBuilder(batch.rows, layout, packed=False)
    data = builder.build(part, {"loss_mask": mask_BT, "advantages": advantages_BT}, EngineOutputs())
    """

    def __init__(
        self,
        rows: Sequence[TrainRow],
        layout: ResponseLayout,
        *,
        packed: bool,
        shares_prompts: bool = False,
        vision: VisionInputs | None = None,
    ) -> None:
        self._rows = rows
        self._layout = layout
        self._packed = packed
        self._shares_prompts = shares_prompts
        self._vision = vision
        self._has_experts = any(row.is_expert for row in rows)
        self._num_rows_of_empty = 2 if any(row.side for row in rows) else 1

    def build(
        self, part: MicroBatch, matrices: Mapping[str, Matrix], outputs: EngineOutputs
    ) -> TensorDict:
        """Builds one micro-batch with these matrices of the batch, in single precision.

        An empty micro-batch gets one masked dummy unit, as every rank must take part in each call.
        """
        tokens_NL = self._tokens(part)
        tensors = {"input_ids": torch.from_numpy(tokens_NL)}
        for name, matrix_BT in matrices.items():
            tensors[name] = self._columns(matrix_BT, part, len(tokens_NL))
        tensors |= self._row_tensors(part, len(tokens_NL))
        if (routes_NLjk := self._routes(part, tokens_NL.shape)) is not None:
            tensors["routed_experts"] = torch.from_numpy(routes_NLjk)
        if self._shares_prompts and (owners := prompt_owners(self._rows, part)) is not None:
            tensors[PROMPT_OWNERS] = torch.tensor(owners)
        settings = self._settings(part, outputs, len(tokens_NL))
        if self._vision is not None:
            rows = [self._rows[number] for number in part]
            more, settings[IMAGES] = self._vision.build(rows, tensors["input_ids"], PAD)
            tensors |= more
        return tensordict_utils.get_tensordict(tensors, settings)

    def _settings(
        self, part: MicroBatch, outputs: EngineOutputs, num_rows: int
    ) -> dict[str, object]:
        """Returns the non-tensor inputs of verl's engines."""
        return {
            "first_token": self._layout.first_token(part),
            "entropy_gradient": outputs.entropy_gradient,
            "calculate_sum_pi_squared": outputs.sum_squared_probs,
            "calculate_discriminator": outputs.discriminator,
            "packed": self._packed,
            "use_remove_padding": self._packed,
            "use_dynamic_bsz": False,
            "disable_auto_offload": True,  # the caller does it
            "micro_batch_size_per_gpu": num_rows,
        }

    def _tokens(self, part: MicroBatch) -> npt.NDArray[np.int64]:
        rows = [self._rows[number] for number in part]
        longest = max((row.length for row in rows), default=SHORTEST_ROW)
        tokens_NL = np.full((len(rows) or self._num_rows_of_empty, longest), PAD, dtype=np.int64)
        for index, row in enumerate(rows):
            tokens_NL[index, : row.length] = row.tokens
        return tokens_NL

    def _routes(self, part: MicroBatch, shape_NL: tuple[int, ...]) -> npt.NDArray[np.int16] | None:
        """Returns the experts of j layers at each token, which sampled the token after it."""
        rows = [self._rows[number] for number in part]
        known = next((row.routed_experts for row in rows if row.routed_experts is not None), None)
        if known is None:
            return None
        routes_NLjk = np.zeros((*shape_NL, *known.shape[1:]), dtype=np.int16)
        for index, row in enumerate(rows):
            if row.routed_experts is not None:
                first = row.prompt_length - 1
                routes_NLjk[index, first : first + row.response_length] = row.routed_experts
        return routes_NLjk

    def _columns(self, matrix_BT: Matrix, part: MicroBatch, num_rows: int) -> torch.Tensor:
        dtype = np.bool_ if matrix_BT.dtype == np.bool_ else np.float32
        if not len(part):
            return torch.from_numpy(np.zeros((num_rows, 1), dtype=dtype))
        placed_NC: npt.NDArray[np.generic] = self._layout.gather_part(matrix_BT, part)
        return torch.from_numpy(placed_NC.astype(dtype))

    def _row_tensors(self, part: MicroBatch, num_rows: int) -> dict[str, torch.Tensor]:
        rows = [self._rows[number] for number in part]
        weights = [row.weight for row in rows] or [1.0] * num_rows
        temperatures = [row.temperature for row in rows] or [1.0] * num_rows
        lengths = [row.length for row in rows] or [SHORTEST_ROW] * num_rows
        prompts = [row.prompt_length for row in rows] or [1] * num_rows
        tensors = {
            "lengths": torch.tensor(lengths),
            "prompt_lengths": torch.tensor(prompts),
            "row_weights": torch.tensor(weights, dtype=torch.float32),
            "temperature": torch.tensor(temperatures, dtype=torch.float32),
        }
        if self._has_experts:
            experts = [row.is_expert for row in rows] or [False] * num_rows
            tensors["is_expert"] = torch.tensor(experts)
        return tensors


class OutputRecorder:
    """Stands in for a loss where only the engine's outputs are needed."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.outputs: dict[str, torch.Tensor] = {}
        """Outputs of the last micro-batch, [N, C]."""

    def __call__(
        self, model_output: dict[str, torch.Tensor], data: TensorDict, dp_group: object
    ) -> tuple[torch.Tensor, dict[str, float]]:
        del data, dp_group
        self.outputs = {name: model_output[OUTPUT_NAMES[name]] for name in self._names}
        return torch.zeros(()), {}


def as_array(values_NC: torch.Tensor) -> FloatMatrix:
    """Moves values off the device, in double precision."""
    array: FloatMatrix = values_NC.detach().cpu().double().numpy()
    return array


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCalls:
    """Splits batches into micro-batches and calls a worker on each. Everything is collective."""

    splitter: MicroBatchSplitter
    inferring: MicroBatchLimits
    """Limits of no-grad passes."""
    on_micro_batch: Callable[[], None]
    vision: VisionInputs | None = None
    """Makes pixels of images, for a vision model."""

    @property
    def life(self) -> LifeSigns:
        """The signs of life of work without micro-batches, such as a checkpoint."""
        return LifeSigns(self.on_micro_batch)

    def limited_to(self, limits: MicroBatchLimits) -> "WorkerCalls":
        """Returns calls that cut all passes by these limits."""
        return replace(self, splitter=replace(self.splitter, limits=limits), inferring=limits)

    @property
    def ranks(self) -> Ranks:
        """The ranks that take part."""
        return self.splitter.ranks

    def compute_outputs(
        self, worker: TinkerTrainingWorker, prepared: PreparedBatch, names: Sequence[str]
    ) -> dict[str, FloatMatrix]:
        """Computes the named outputs for all rows with tokens to train on."""
        recorder = OutputRecorder(names)
        worker.set_loss_fn(recorder)
        gatherer = OutputGatherer(prepared.layout, self.ranks)
        outputs = EngineOutputs(
            sum_squared_probs="collision" in names,
            discriminator="discriminator" in names,
        )
        matrices = {"loss_mask": prepared.mask_BT}
        with on_device(worker):
            limits = self.inferring
            for part, data, _ in self._data(worker, prepared, matrices, outputs, limits):
                worker.infer_batch(data)
                self.on_micro_batch()
                for name in names:
                    gatherer.add_micro_batch(name, part, as_array(recorder.outputs[name]))
        return {name: gatherer.reduce(name) for name in names}

    def add_gradients(
        self,
        worker: TinkerTrainingWorker,
        loss: LossFn,
        prepared: PreparedBatch,
        matrices: Mapping[str, Matrix],
        outputs: EngineOutputs,
        before: Callable[[TensorDict], None] | None = None,
    ) -> Iterator[MicroBatch]:
        """Calls the loss with each micro-batch of the rows in which `loss_mask` leaves tokens.

        `before` is called with each micro-batch first.
        """
        worker.set_loss_fn(loss)
        worker.optimizer_zero_grad()
        with on_device(worker):
            for part, data, is_last in self._data(
                worker, prepared, matrices, outputs, self.splitter.limits
            ):
                if before is not None:
                    before(data)
                worker.engine.module.set_requires_gradient_sync(is_last)
                worker.forward_backward(data)
                self.on_micro_batch()
                yield part

    def _data(
        self,
        worker: TinkerTrainingWorker,
        prepared: PreparedBatch,
        matrices: Mapping[str, Matrix],
        outputs: EngineOutputs,
        limits: MicroBatchLimits,
    ) -> Iterator[tuple[MicroBatch, TensorDict, bool]]:
        rows, packed = prepared.rows, packs_rows(worker)
        shares = shares_prompts(worker, rows)
        builder = MicroBatchBuilder(
            rows, prepared.layout, packed=packed, shares_prompts=shares, vision=self.vision
        )
        mask_BT: BoolMatrix = matrices["loss_mask"].astype(bool)
        splitter = replace(self.splitter, limits=limits)
        for part, is_last in splitter.parts(rows, mask_BT, packed=packed, shares_prompts=shares):
            yield part, builder.build(part, matrices, outputs), is_last

    def work_metrics(
        self, worker: TinkerTrainingWorker, rows: Sequence[TrainRow], parts: Sequence[MicroBatch]
    ) -> Metrics:
        """Measures a pass over this rank's micro-batches. Collective."""
        shares = shares_prompts(worker, rows)
        return work_metrics(
            rows, parts, self.ranks, packed=packs_rows(worker), shares_prompts=shares
        )


@contextmanager
def on_device(worker: TinkerTrainingWorker) -> Iterator[None]:
    """Moves offloaded weights to the device once, not for each micro-batch."""
    engine = worker.engine
    if not engine.is_param_offload_enabled:
        yield
        return
    engine.to(device=get_device_name(), model=True, optimizer=False, grad=True)
    try:
        yield
    finally:
        engine.to(device="cpu", model=True, optimizer=False, grad=True)


def enter_device(worker: TinkerTrainingWorker) -> None:
    """Moves weights and optimizer to the device, unless FSDP itself keeps them on the host."""
    if not worker.engine.engine_config.offload_policy:
        worker.engine.to(device=get_device_name(), model=True, optimizer=True, grad=True)


def leave_device(worker: TinkerTrainingWorker) -> None:
    """Drops the gradients, which a step has used, and moves the rest to the host's memory."""
    worker.optimizer_zero_grad()
    if not worker.engine.engine_config.offload_policy:
        worker.engine.to(device="cpu", model=True, optimizer=True, grad=True)


def free_device_memory() -> None:
    """Waits for copies from the device, then gives the memory that they were made of to others."""
    device = get_torch_device()
    device.synchronize()
    gc.collect()
    device.empty_cache()


class VocabularyTeacher:
    """A model whose weights stay as they are. Collective.

    teacher = VocabularyTeacher(plan, directory)
    teacher.teach(data, actor.worker)
    actor.worker.forward_backward(data)
    """

    def __init__(self, plan: StagePlan, model_directory: Path) -> None:
        self._direction = plan.config.algorithm.distillation.divergence
        self.worker = build_teacher(plan, model_directory)
        self.worker.engine.shows_top_k = plan.config.algorithm.distillation.top_k
        self.worker.set_loss_fn(OutputRecorder(()))

    def check_rows(self, student: TinkerTrainingWorker) -> None:
        """Raises: UserError if only one of the two models can take rows without padding."""
        if packs_rows(self.worker) != packs_rows(student):
            raise UserError(
                "`algorithm.distillation.model_path` and the policy take rows in different forms, "
                "with and without padding: give `trainer.use_remove_padding: false`"
            )

    def teach(self, data: TensorDict, student: TinkerTrainingWorker) -> None:
        """Sets the teacher's distributions as targets of the student's next pass over the rows."""
        self.worker.infer_batch(data)
        shown, self.worker.engine.shown = self.worker.engine.shown, None
        assert shown is not None
        student.engine.lesson = Lesson(teacher=shown, direction=self._direction)
