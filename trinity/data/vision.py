"""Images as a model takes them: placeholders among token ids, pixels, and places in the image.

Rollout and training both read images through `VisionProcessor`, so that they see the same ones.

Shapes: L tokens of a sequence, P patches of an image, D values of a patch.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trinity.data.conversations import FAMILIES
from trinity.errors import UserError

if TYPE_CHECKING:
    import PIL.Image

Grid = tuple[int, int, int]
"""An image's frames, and its rows and columns of patches."""
IntVector = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ImagePixels:
    """An image as the model's processor cut it."""

    values_PD: npt.NDArray[np.float32]
    grid: Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTokens:
    """The tokens of images of a model."""

    family: str
    image_token: int
    merge: int
    """Patches along each side that become one token."""

    @classmethod
    def of(cls, keys: Mapping[str, Any]) -> "VisionTokens | None":
        """Returns it for the keys of a config.json; None for a model that reads no images here."""
        if keys.get("model_type") not in FAMILIES:
            return None
        merge = keys["vision_config"].get("spatial_merge_size", 2)
        family, image_token = str(keys["model_type"]), int(keys["image_token_id"])
        return cls(family=family, image_token=image_token, merge=int(merge))

    def count(self, grid: Grid) -> int:
        """Returns the number of tokens of an image."""
        frames, height, width = grid
        return frames * height * width // self.merge**2

    def positions(self, tokens_L: npt.ArrayLike, grids: Sequence[Grid]) -> IntVector:
        """Returns the rotary positions of each token, [3, L]: of time, row and column.

        Tokens of text have the same three. Those of an image start at the next position, and the
        text after it goes on behind its longer side.

        Raises: UserError as `spans` does.
        """
        spans, length = self.spans(tokens_L, grids), len(np.asarray(tokens_L))
        parts: list[IntVector] = []
        done, position = 0, 0
        for (begin, end), (frames, height, width) in zip(spans, grids, strict=True):
            parts.append(np.tile(np.arange(begin - done) + position, (3, 1)))
            position += begin - done
            rows, columns = height // self.merge, width // self.merge
            parts.append(np.indices((frames, rows, columns)).reshape(3, -1) + position)
            parts[-1][0] = position  # all frames of an image are shown at once
            position, done = position + max(rows, columns), end
        parts.append(np.tile(np.arange(length - done) + position, (3, 1)))
        return np.concatenate(parts, axis=1)

    def spans(self, tokens_L: npt.ArrayLike, grids: Sequence[Grid]) -> list[tuple[int, int]]:
        """Returns where the tokens of each image are.

        A model may write the token of images too; what does not fit the next image is text.

        Raises: UserError if the tokens do not have all images, in order.
        """
        is_image_L = np.asarray(tokens_L) == self.image_token
        edges = np.flatnonzero(np.diff(np.concatenate([[False], is_image_L, [False]]).astype(int)))
        found: list[tuple[int, int]] = []
        counts = [self.count(grid) for grid in grids]
        for begin, end in edges.reshape(-1, 2).tolist():
            ends = begin + np.cumsum(counts[len(found) :])
            if end in ends:  # of images that stand side by side
                borders = [begin, *ends[: np.flatnonzero(ends == end)[0] + 1].tolist()]
                found += pairwise(borders)
        if len(found) < len(grids):
            raise UserError(
                f"{len(grids)} images belong to a sequence that has the tokens of {len(found)}"
            )
        return found

    def without_strays(self, tokens_L: IntVector, grids: Sequence[Grid], other: int) -> IntVector:
        """Returns the tokens with `other` for those of images that the model wrote itself."""
        is_stray_L = tokens_L == self.image_token
        for begin, end in self.spans(tokens_L, grids):
            is_stray_L[begin:end] = False
        return np.where(is_stray_L, other, tokens_L)

    def repeats(self, token_ids: Sequence[int], counts: Sequence[int]) -> IntVector:
        """Returns how often each token stands in the expanded sequence: placeholders more often.

        `counts` are the numbers of tokens of the images.

        Raises: UserError if there are not as many placeholders as images.
        """
        places = np.flatnonzero(np.asarray(token_ids, dtype=np.int64) == self.image_token)
        if len(places) != len(counts):
            raise UserError(
                f"the text has {len(places)} places of images, and {len(counts)} images belong to "
                "it: the chat template must write one for each image, and no text may hold one"
            )
        counts_L = np.ones(len(token_ids), dtype=np.int64)
        counts_L[places] = counts
        return counts_L

    def collapsed(self, token_ids: Sequence[int], counts: Sequence[int]) -> list[int]:
        """Returns the sequence before `repeats`: one placeholder for each image.

        A token of images that the model wrote behind them stays as it is.
        """
        found, left, place = [], iter(counts), 0
        while place < len(token_ids):
            found.append(token_ids[place])
            place += next(left, 1) if token_ids[place] == self.image_token else 1
        return found


class VisionProcessor:
    """A model's own processor of images.

    vision = VisionProcessor(model_directory)
    image = decode(content)
    expanded = np.repeat(token_ids, vision.tokens.repeats(token_ids, [vision.num_tokens(image)]))
    pixels = vision.pixels(image)
    """

    @classmethod
    def of_model(cls, directory: str | Path) -> "VisionProcessor | None":
        """Returns that of a model's directory; None for a model that reads no images here.

        Raises: UserError if the processor cannot be read.
        """
        try:
            keys = json.loads((Path(directory) / "config.json").read_bytes())
        except (OSError, ValueError):
            return None
        tokens = VisionTokens.of(keys)
        return None if tokens is None else cls(directory, tokens)

    def __init__(self, directory: str | Path, tokens: VisionTokens) -> None:
        """Raises: UserError if the processor cannot be read."""
        from transformers import AutoProcessor  # imports torch

        try:
            processor = AutoProcessor.from_pretrained(directory)
        except (ImportError, OSError, ValueError) as error:
            raise UserError(
                f"the processor of images of {directory} cannot be read: "
                f"{str(error).strip().splitlines()[0]}"
            ) from error
        self.tokens = tokens
        self._images = processor.image_processor

    def num_tokens(self, image: "PIL.Image.Image") -> int:
        """Returns the number of tokens of an image.

        Raises: UserError if the processor takes no image of such a shape.
        """
        try:
            patches = self._images.get_number_of_image_patches(image.height, image.width, {})
        except ValueError as error:
            raise UserError(f"an image of {image.width} x {image.height}: {error}") from error
        return int(patches) // self.tokens.merge**2

    def pixels(self, image: "PIL.Image.Image") -> ImagePixels:
        """Returns the image's patches. Takes milliseconds."""
        cut = self._images(images=[image], return_tensors="pt")
        frames, height, width = cut["image_grid_thw"][0].tolist()
        return ImagePixels(cut["pixel_values"].float().numpy(), (frames, height, width))
