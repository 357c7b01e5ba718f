"""Calls of verl's workers on the micro-batches of a batch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils
from verl.utils.device import get_device_name
from verl.workers.engine_workers_tinker import TinkerTrainingWorker

from services.trainer.gatherer import Gatherer
from services.trainer.parts import Splitter
from services.trainer.parts_types import Part
from services.trainer.prepared import PreparedBatch
from services.trainer.ranks import Ranks
from services.trainer.tensors import Matrix, Outputs, TensorMaker, response_columns
from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix

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


class Recorder:
    """Stands in for a loss where only the engine's outputs are needed."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.seen: dict[str, torch.Tensor] = {}
        """Outputs of the last micro-batch, [N, C]."""

    def __call__(
        self, model_output: dict[str, torch.Tensor], data: TensorDict, dp_group: object
    ) -> tuple[torch.Tensor, dict[str, float]]:
        del dp_group
        self.seen = {
            name: output_columns(model_output[OUTPUT_NAMES[name]], data) for name in self._names
        }
        return torch.zeros(()), {}


def output_columns(values: torch.Tensor, data: TensorDict) -> torch.Tensor:
    """Returns an engine's output by token, [N, C]."""
    first = tensordict_utils.get_non_tensor_data(data, "first_token", default=1)
    return response_columns(values, first, data["loss_mask"].shape[1])


def as_array(values_NC: torch.Tensor) -> FloatMatrix:
    """Moves values off the device, in double precision."""
    array: FloatMatrix = values_NC.detach().cpu().double().numpy()
    return array


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Splits batches into micro-batches and calls a worker on each. Everything is collective."""

    splitter: Splitter
    packed: bool
    on_part: Callable[[], None]

    @property
    def ranks(self) -> Ranks:
        """The ranks that take part."""
        return self.splitter.ranks

    def infer(
        self, worker: TinkerTrainingWorker, prepared: PreparedBatch, names: Sequence[str]
    ) -> dict[str, FloatMatrix]:
        """Computes the named outputs for all rows with tokens to train on."""
        recorder = Recorder(names)
        worker.set_loss_fn(recorder)
        gatherer = Gatherer(prepared.layout, self.ranks)
        outputs = Outputs(
            entropies="entropies" in names,
            collision="collision" in names,
            discriminator="discriminator" in names,
        )
        matrices = {"loss_mask": prepared.mask_BT}
        with on_device(worker):
            for part, data, _ in self._data(prepared, prepared.mask_BT, matrices, outputs):
                worker.infer_batch(data)
                self.on_part()
                for name in names:
                    gatherer.add(name, part, as_array(recorder.seen[name]))
        return {name: gatherer.gather(name) for name in names}

    def add_gradients(
        self,
        worker: TinkerTrainingWorker,
        loss: LossFn,
        prepared: PreparedBatch,
        matrices: Mapping[str, Matrix],
        outputs: Outputs,
    ) -> Iterator[Part]:
        """Calls the loss with each micro-batch of the rows in which `loss_mask` leaves tokens."""
        worker.set_loss_fn(loss)
        worker.optimizer_zero_grad()
        mask_BT: BoolMatrix = matrices["loss_mask"].astype(bool)
        with on_device(worker):
            for part, data, is_last in self._data(prepared, mask_BT, matrices, outputs):
                worker.engine.module.set_requires_gradient_sync(is_last)
                worker.forward_backward(data)
                self.on_part()
                yield part

    def _data(
        self,
        prepared: PreparedBatch,
        mask_BT: BoolMatrix,
        matrices: Mapping[str, Matrix],
        outputs: Outputs,
    ) -> Iterator[tuple[Part, TensorDict, bool]]:
        maker = TensorMaker(prepared.rows, prepared.layout, packed=self.packed)
        for part, is_last in self.splitter.parts(prepared.rows, mask_BT):
            yield part, maker.tensors(part, matrices, outputs), is_last


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
