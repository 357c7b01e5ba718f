"""Images in the micro-batches of a rank.

Shapes: N rows of L tokens, T tokens of a packed row, P patches of D values.

Every micro-batch of a vision model shows the tower at least one image, as its layers are gathered
collectively: one without images gets a single blank token, which no other attends to.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from services.trainer.backend.packed_attention import RUNS_ARGUMENT, PackedRows
from services.trainer.types import TrainRow
from trinity.data.images import decode
from trinity.data.vision import ImagePixels, VisionProcessor, VisionTokens

IMAGES = "images"
"""The images of a micro-batch among its settings."""
MODEL_IDS = "model_ids"
"""[N, L]: tokens without those of images that the model wrote itself, which stand for no pixels."""
POSITIONS = "positions"
"""[N, 3, L]: rotary positions."""
MAX_PIXEL_BYTES = 256 << 20
"""Limits the cache of pixels in each rank."""
TOWER = "visual"
"""Name of the vision tower among the parts of every family's model."""
FILE_PREFIXES = {"model.language_model.": "model.", f"model.{TOWER}.": f"{TOWER}."}
"""Beginnings of names in memory, with those in the files of the older families."""
Inputs = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchImages:
    """The images of each row of a micro-batch; a blank one if there are none."""

    of_rows: tuple[tuple[ImagePixels, ...], ...]
    blank: ImagePixels
    image_token: int

    def padded(self, ids_NL: torch.Tensor, positions_N3L: torch.Tensor) -> Inputs:
        """Returns the model's inputs for padded rows; a blank image is behind all columns."""
        pixels = self._inputs(range(len(self.of_rows)), ids_NL.device)
        if not any(self.of_rows):
            ids_NL = nn.functional.pad(ids_NL, (0, 1))
            ids_NL[0, -1] = self.image_token
            positions_N3L = nn.functional.pad(positions_N3L, (0, 1))
        return {
            "input_ids": ids_NL,
            "attention_mask": None,
            "position_ids": positions_N3L.transpose(0, 1),
            **pixels,
        }

    def packed(
        self, packed: PackedRows, ids_NL: torch.Tensor, positions_N3L: torch.Tensor
    ) -> Inputs:
        """Returns the same for a packed row; a blank image is a separate sequence."""
        ids_1T = packed.lay(ids_NL)[None]
        positions_31T = packed.lay(positions_N3L.transpose(1, 2)).T[:, None]
        order = torch.unique_consecutive(packed.numbers_T).tolist()
        runs = packed.runs
        if not any(self.of_rows):
            ids_1T = nn.functional.pad(ids_1T, (0, 1), value=self.image_token)
            positions_31T = nn.functional.pad(positions_31T, (0, 1))
            runs = (*runs, (1, 1))
        return {
            "input_ids": ids_1T,
            "attention_mask": None,
            "position_ids": positions_31T,
            RUNS_ARGUMENT: runs,
            **self._inputs(order, ids_NL.device),
        }

    def _inputs(self, order: Sequence[int], device: torch.device) -> Inputs:
        shown = [image for row in order for image in self.of_rows[row]] or [self.blank]
        values_PD = torch.from_numpy(np.concatenate([image.values_PD for image in shown]))
        grids = torch.tensor([image.grid for image in shown])
        return {"pixel_values": values_PD.to(device), "image_grid_thw": grids.to(device)}


class VisionInputs:
    """Makes pixels and positions of rows, and keeps the pixels that were used last.

    vision = VisionInputs.of_model(directory)
    tensors, images = vision.build(rows, tokens_NL)
    """

    def __init__(self, processor: VisionProcessor, blank: ImagePixels) -> None:
        self._processor = processor
        self._blank = blank
        self._pixels: dict[bytes, ImagePixels] = {}
        self._num_bytes = 0

    @classmethod
    def of_model(cls, directory: Path, keys: Mapping[str, Any]) -> "VisionInputs | None":
        """Returns it for a model with these keys; None for one that reads no images.

        Raises: UserError if its processor cannot be read.
        """
        tokens = VisionTokens.of(keys)
        if tokens is None:
            return None
        vision = keys["vision_config"]
        size = vision.get("in_channels", 3) * vision.get("temporal_patch_size", 2)
        size *= vision["patch_size"] ** 2
        values_PD = np.zeros((tokens.merge**2, size), dtype=np.float32)
        blank = ImagePixels(values_PD, (1, tokens.merge, tokens.merge))
        return cls(VisionProcessor(directory, tokens), blank)

    def build(
        self, rows: Sequence[TrainRow], tokens_NL: torch.Tensor, other: int
    ) -> tuple[dict[str, torch.Tensor], MicroBatchImages]:
        """Returns a micro-batch's tensors and images; `other` is a token of text.

        Raises: UserError if a row does not have the tokens of its images.
        """
        tokens, num_rows = self._processor.tokens, len(tokens_NL)
        of_rows = tuple(tuple(self._pixels_of(image) for image in row.images) for row in rows)
        of_rows = of_rows or ((),) * num_rows
        ids_NL, positions_N3L = tokens_NL.numpy().copy(), []
        for index, images in enumerate(of_rows):
            grids = [image.grid for image in images]
            positions_N3L.append(tokens.positions(ids_NL[index], grids))
            ids_NL[index] = tokens.without_strays(ids_NL[index], grids, other)
        tensors = {
            MODEL_IDS: torch.from_numpy(ids_NL),
            POSITIONS: torch.from_numpy(np.stack(positions_N3L)),
        }
        return tensors, MicroBatchImages(
            of_rows=of_rows, blank=self._blank, image_token=tokens.image_token
        )

    def _pixels_of(self, content: bytes) -> ImagePixels:
        """Keeps the images that were used last at the end."""
        found = self._pixels.pop(content, None)
        if found is None:
            found = self._processor.pixels(decode(content))
            self._num_bytes += found.values_PD.nbytes
        self._pixels[content] = found
        while self._num_bytes > MAX_PIXEL_BYTES and len(self._pixels) > 1:
            oldest = self._pixels.pop(next(iter(self._pixels)))
            self._num_bytes -= oldest.values_PD.nbytes
        return found


def name_in_files(name: str, kind: str) -> str:
    """Returns the name that the files of models of this kind have for a tensor."""
    if kind in ("qwen2_vl", "qwen2_5_vl"):
        for prefix, in_files in FILE_PREFIXES.items():
            if name.startswith(prefix):
                return in_files + name.removeprefix(prefix)
    return name


@contextmanager
def unpatched() -> Iterator[None]:
    """Keeps verl from patching the classes of vision models while it builds one.

    It would patch them for the whole process, and packed rows then need flash-attn. Our inputs and
    our attention fit the models as they are.
    """
    from verl.workers.engine.fsdp import transformer_impl  # late: the platform must stand first

    patch = transformer_impl.apply_monkey_patch
    transformer_impl.apply_monkey_patch = lambda **_: None
    try:
        yield
    finally:
        transformer_impl.apply_monkey_patch = patch


def freeze_tower(module: nn.Module) -> None:
    """Keeps the weights of the vision tower as they are."""
    for name, parameter in module.named_parameters():
        if TOWER in name.split("."):
            parameter.requires_grad_(False)
