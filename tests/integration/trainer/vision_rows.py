"""Rows with images for tests of learners, and the same rows by transformers alone."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from services.trainer.types import RunReward, TrainBatch, TrainRow
from tests.integration.trainer.learners import Arrays, gradients_of
from tests.support.vision_models import make_vision_model
from tests.unit.trainer.builders import make_plan
from trinity.data.conversations import FAMILIES

if TYPE_CHECKING:
    from services.trainer.collectives import Ranks

LayOut = dict[str, object]
PADDED: LayOut = {"use_remove_padding": False}
PACKED: LayOut = {"use_remove_padding": True}
CUT: LayOut = {"use_remove_padding": True, "max_token_len_per_gpu": 64}
SIZES: Sequence[Sequence[tuple[int, int]]] = (
    [(56, 84)],
    [(112, 56)],
    [],
    [(60, 60), (84, 56)],
    [(90, 120)],
    [(56, 84)],
)
"""Width and height of each image of each row."""


def picture(size: tuple[int, int], seed: int) -> bytes:
    """A PNG of noise."""
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


@dataclass(frozen=True, slots=True)
class VisionRows:
    """A batch, and what the model's own processor makes of each row."""

    batch: TrainBatch
    inputs: list[dict[str, torch.Tensor]]


def vision_rows(directory: Path, sizes: Sequence[Sequence[tuple[int, int]]] = SIZES) -> VisionRows:
    """Rows whose prompts have images of these sizes, with answers of random tokens."""
    processor = AutoProcessor.from_pretrained(directory)
    generator = np.random.default_rng(1)
    rows, inputs = [], []
    for number, of_row in enumerate(sizes):
        contents = tuple(picture(size, 10 * number + at) for at, size in enumerate(of_row))
        parts = [*({"type": "image"} for _ in of_row), {"type": "text", "text": "what?"}]
        text = processor.apply_chat_template(
            [{"role": "user", "content": parts}], add_generation_prompt=True
        )
        shown = [Image.open(io.BytesIO(content)) for content in contents]
        made = processor(text=[text], images=shown or None, return_tensors="pt")
        answer = torch.from_numpy(generator.integers(10, 250, 3 + number))
        length = made["input_ids"].shape[1]
        tokens = torch.cat([made["input_ids"][0], answer])
        inputs.append(
            {
                **{name: made[name] for name in ("pixel_values", "image_grid_thw") if of_row},
                "input_ids": tokens[None],
                "mm_token_type_ids": (tokens == processor.image_token_id).int()[None],
            }
        )
        rows.append(
            TrainRow(
                position=number,
                tokens=tokens.numpy().astype(np.int32),
                prompt_length=length,
                mask=np.ones(len(answer), dtype=np.bool_),
                rollout_logprobs=np.full(len(answer), -5.5, dtype=np.float32),
                advantages=np.full(len(answer), 1.0 - number % 2, dtype=np.float32),
                images=contents,
                num_image_tokens=int((tokens == processor.image_token_id).sum()),
                run_reward=RunReward(
                    assignment_id=f"task {number // 2}", run=number % 2, reward=float(number % 2)
                ),
            )
        )
    batch = TrainBatch(step=1, rows=rows, metrics={}, replayed=False)
    return VisionRows(batch, inputs)


def as_data(rows: VisionRows) -> TrainBatch:
    """The same rows as training data."""
    plain = [replace(row, run_reward=None) for row in rows.batch.rows]
    return replace(rows.batch, rows=plain)


def logprobs_by_transformers(model: torch.nn.Module, rows: VisionRows) -> list[torch.Tensor]:
    """Of the answers' tokens, a row at a time."""
    found = []
    for row, inputs in zip(rows.batch.rows, rows.inputs, strict=True):
        logits = model(**inputs).logits[0, row.prompt_length - 1 : -1].float()
        labels = inputs["input_ids"][0, row.prompt_length :, None]
        found.append(torch.log_softmax(logits, -1).gather(1, labels)[:, 0])
    return found


def gradients_by_transformers(directory: Path, rows: VisionRows) -> Arrays:
    """Of the mean of minus log-probabilities over all tokens of answers."""
    model = AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
    parts = logprobs_by_transformers(model, rows)
    (-torch.cat(parts).mean()).backward()
    return {
        f"actor/{name}": parameter.grad.numpy()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def close(left: Arrays, right: Arrays, share: float = 1e-5) -> None:
    """Differences are a share of an array's largest element."""
    assert left.keys() == right.keys()
    for name, array in left.items():
        most = share * max(float(np.abs(array).max()), 1e-2)
        np.testing.assert_allclose(right[name], array, rtol=0, atol=most, err_msg=name)


@dataclass(frozen=True, slots=True)
class RanksCase:
    """Fine-tuning with images by the ranks of a gang."""

    kind: str
    sizes: Sequence[Sequence[tuple[int, int]]] = SIZES
    trainer: Mapping[str, object] = field(default_factory=dict)

    def rows(self, directory: Path) -> VisionRows:
        """The rows, with the model written into this folder."""
        return vision_rows(make_vision_model(directory, self.kind), self.sizes)

    def gradients(self, directory: Path, ranks: "Ranks") -> Arrays:
        """Those of one step, whole, with each rank's own copy of the model."""
        from services.trainer.learner.learner import Learner

        own = directory.with_name(f"{directory.name}_{self.kind}_{ranks.rank}")
        batch = as_data(self.rows(own))
        lengths = {"max_prompt_tokens": 100, "max_response_tokens": 28}
        plan = make_plan(own, {"algorithm_type": "sft"}, self.trainer, lengths)
        return gradients_of(Learner(plan=plan, model_directory=own, ranks=ranks), batch)


ONE_HAS_NONE: Sequence[Sequence[tuple[int, int]]] = ([(56, 84)], [])
"""Two ranks get a row each, one of them without images."""
RANKS_CASES = {
    **{f"{kind} packed and cut": RanksCase(kind, SIZES, CUT) for kind in FAMILIES},
    **{f"{kind}, a rank without images": RanksCase(kind, ONE_HAS_NONE) for kind in FAMILIES},
    "padded, a rank without images": RanksCase("qwen2_5_vl", ONE_HAS_NONE, PADDED),
    "a frozen tower, a rank without images": RanksCase(
        "qwen3_vl", ONE_HAS_NONE, {"freeze_vision_tower": True}
    ),
}
