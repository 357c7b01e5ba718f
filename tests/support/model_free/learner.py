"""A learner whose weights are a hash of the weights before and of every row trained on.

It takes the place of the trainer's learner in a rank's process: see `rank.py`.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from services.trainer.collectives import Ranks
from services.trainer.types import RowStatistics, StepOutcome, TrainBatch, TrainRow
from tests.support.model_free.device import SimulatedDevice, device_folder
from tests.support.model_free.model import TENSOR, as_array, as_digest, read_digest
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.plan.start_checkpoint import StartCheckpoint

STEP_SECONDS_VARIABLE = "TRINITY_TEST_STEP_SECONDS"
"""How long a train step takes."""
NUM_UNCHANGED = 4096
STATE_FILE = "state.json"


class Learner:
    """A digest that takes in batches."""

    def __init__(
        self,
        *,
        plan: StagePlan,
        model_directory: Path,
        ranks: Ranks,
        critic_directory: Path | None = None,
        teacher_directory: Path | None = None,
        start_checkpoint: StartCheckpoint | None = None,
        on_micro_batch: Callable[[], None] = lambda: None,
    ) -> None:
        del ranks, critic_directory, teacher_directory, start_checkpoint
        self._on_micro_batch = on_micro_batch
        self._is_half = plan.config.trainer.dtype == "bfloat16"
        self._digest = read_digest(model_directory)
        self._seconds = float(os.environ.get(STEP_SECONDS_VARIABLE, "0"))
        folder = device_folder(plan.model_path)
        self._device = SimulatedDevice(folder, "rank") if plan.takes_turns else None
        self.enter_device()

    def train_step(
        self, batch: TrainBatch, learning_rate: float, critic_learning_rate: float = 0.0
    ) -> StepOutcome:
        """Take in the step's number, its rate and its rows, in their order."""
        del critic_learning_rate
        self._check_device()
        time.sleep(self._seconds)
        digest = hashlib.sha256(self._digest)
        digest.update(f"{batch.step} {learning_rate!r}".encode())
        for row in batch.rows:
            _take_in(digest.update, row)
        self._digest = digest.digest()
        self._on_micro_batch()
        rows = {row.position: RowStatistics(mean_ratio=1.0, advantage=0.0) for row in batch.rows}
        return StepOutcome(metrics={"actor/loss": 0.0, "actor/grad_norm": 1.0}, rows=rows)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """One tensor; in half precision beside many numbers that no step changes."""
        self._check_device()
        yield TENSOR, torch.from_numpy(as_array(self._digest))
        if self._is_half:
            yield "unchanged", torch.arange(NUM_UNCHANGED, dtype=torch.float32)

    def split_weights(self) -> None:
        """It has them whole."""

    def adapter_base(self) -> bytes | None:
        """There is no adapter."""
        return None

    def enter_device(self) -> None:
        """Use the device that is simulated, if any."""
        if self._device is not None:
            self._device.wake()

    def leave_device(self) -> None:
        """Use it no longer."""
        if self._device is not None:
            self._device.sleep()

    def _check_device(self) -> None:
        if self._device is not None:
            self._device.check_awake()

    def save(self, directory: Path, step: int) -> None:
        """The digest and its step."""
        self._check_device()
        state = {"step": step, "digest": list(self._digest)}
        (directory / STATE_FILE).write_text(json.dumps(state))

    def load(self, directory: Path) -> None:
        """What `save` wrote."""
        self._digest = as_digest(json.loads((directory / STATE_FILE).read_text())["digest"])


def make_deterministic(num_threads: int) -> None:
    """A hash is."""
    torch.set_num_threads(num_threads)


def _take_in(update: Callable[[bytes], None], row: TrainRow) -> None:
    update(f"{row.position} {row.prompt_length} {row.weight!r}".encode())
    for array in (row.tokens, row.mask, row.rollout_logprobs, row.advantages):
        update(array.tobytes())
    for image in row.images:
        update(image)
