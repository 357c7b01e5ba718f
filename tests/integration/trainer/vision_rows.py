"""Rows with images for tests of learners, and the same rows by transformers alone."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from services.trainer.types import RunReward, TrainBatch, TrainRow
from tests.integration.trainer.learners import Arrays

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
