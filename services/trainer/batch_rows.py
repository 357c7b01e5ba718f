"""Converts the rows of batches as the buffer sends them into rows to train on."""

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from services.trainer.types import RunReward, TrainRow
from trinity.api.v1 import buffer_pb2, experience_pb2
from trinity.data.codec import blob_from_proto, sequence_from_proto, tensor_from_proto
from trinity.data.images import IMAGE, decode, ref_of
from trinity.data.vision import VisionProcessor
from trinity.errors import RunFailed, UserError
from trinity.types import (
    MAX_EXPERTS,
    ROUTED_EXPERTS,
    ArrayData,
    BlobRef,
    FloatArray,
    IntArray,
    JsonObject,
    JsonValue,
)

logger = logging.getLogger(__name__)

ADVANTAGES = "advantages"
TOKEN_REWARDS = "token_rewards"
TEACHER_LOGPROBS = "teacher_logprobs"
REWARD_BASELINE = "reward_baseline"
NEVER_TRAINED = frozenset(
    {experience_pb2.FINISH_REASON_ABORT, experience_pb2.FINISH_REASON_PROMPT_TRUNCATED}
)


KEPT_IMAGE_BYTES = 256 << 20
"""Limits the encoded images that are kept from one batch to the next."""
ReadMedia = Callable[[Sequence[bytes]], Mapping[bytes, bytes]]
"""Reads images by their SHA-256."""


class BatchImages:
    """The images of a stage's batches, for a vision model: read at once, the newest are kept.

    images.fetch(messages)
    contents = images.contents(refs)
    """

    def __init__(self, vision: VisionProcessor, read: ReadMedia) -> None:
        self._vision = vision
        self._read = read
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._num_tokens: dict[bytes, int] = {}

    @classmethod
    def of_model(cls, directory: Path, read: ReadMedia) -> "BatchImages | None":
        """Returns it for the model in a directory; None for one that reads text alone."""
        vision = VisionProcessor.of_model(directory)
        return None if vision is None else cls(vision, read)

    def fetch(self, messages: Iterable[buffer_pb2.BatchRow]) -> None:
        """Reads all images of a batch's rows that are not here."""
        wanted = dict.fromkeys(sha256 for message in messages for sha256 in _hashes_of(message))
        if missing := [sha256 for sha256 in wanted if sha256 not in self._kept]:
            self._kept.update(self._read(missing))
        for sha256 in wanted:
            self._kept.move_to_end(sha256)
        num_bytes = sum(map(len, self._kept.values()))
        while num_bytes > KEPT_IMAGE_BYTES and len(self._kept) > len(wanted):
            num_bytes -= len(self._kept.popitem(last=False)[1])

    def contents(self, refs: Iterable[BlobRef]) -> tuple[bytes, ...]:
        """Returns the encoded files of images that were fetched."""
        return tuple(self._kept[ref.sha256] for ref in refs)

    def repeats(self, token_ids: Sequence[int], refs: Sequence[BlobRef]) -> npt.NDArray[np.int64]:
        """Returns how often each token of a text stands in the sequence: see `VisionTokens`.

        Raises: UserError.
        """
        for ref in refs:
            if ref.sha256 not in self._num_tokens:
                image = decode(self._kept[ref.sha256])
                self._num_tokens[ref.sha256] = self._vision.num_tokens(image)
        counts = [self._num_tokens[ref.sha256] for ref in refs]
        return self._vision.tokens.repeats(token_ids, counts)

    def count_tokens(self, tokens_L: IntArray) -> int:
        """Returns the number of tokens of images."""
        return int((tokens_L == self._vision.tokens.image_token).sum())


def _hashes_of(message: buffer_pb2.BatchRow) -> Iterator[bytes]:
    if message.WhichOneof("source") == "experience":
        yield from (blob.sha256 for blob in message.experience.blobs if blob.name == IMAGE)
    elif b"sha256" in message.row_json.encode():
        yield from (ref.sha256 for ref in _refs_in(json.loads(message.row_json)))


def _refs_in(value: JsonValue) -> Iterator[BlobRef]:
    """Yields the images that a row refers to, wherever they are in it."""
    if (ref := ref_of(value)) is not None:
        yield ref
    elif isinstance(value, dict | list):
        for own in value.values() if isinstance(value, dict) else value:
            yield from _refs_in(own)


class RowFormatter(Protocol):
    """Tokenizes a row of training data: returns one row, or the two of a pair."""

    def __call__(
        self, row: JsonObject, *, index: int, position: int, weight: float
    ) -> Sequence[TrainRow]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """Reads the rows of a stage's batches.

    rows = RowReader(formatter=formatter, mixed_with_rollouts=False).read(messages)
    """

    formatter: RowFormatter | None
    """Formats training data; None without training data."""
    mixed_with_rollouts: bool
    """True if training data is mixed with rollouts."""
    skips_bad_rows: bool = False
    """Rows of data that cannot be formatted are left out; the batch keeps their positions."""
    mismatched_length: int | None = None
    """Longest sequence, where each row of data is followed by its prompt with another's answer."""
    images: BatchImages | None = None
    """Reads images, for a vision model."""
    replays_experts: bool = True
    """False if recorded experts are not chosen again: the samples may be another stage's."""

    def read(
        self, messages: Iterable[buffer_pb2.BatchRow], *, oldest_version: int = 0
    ) -> list[TrainRow]:
        """Returns the rows in order of position, with their tokens.

        Tokens of weights older than `oldest_version` are not trained on.

        Raises: RunFailed when a row is of a kind that the stage cannot train on.
        """
        ordered = sorted(messages, key=lambda message: message.position)
        if self.images is not None:
            self.images.fetch(ordered)
        rows = [row for message in ordered for row in self._read(message, oldest_version)]
        if self.mismatched_length is None:
            return rows
        return with_mismatched(rows, self.mismatched_length)

    def _read(self, message: buffer_pb2.BatchRow, oldest_version: int) -> Sequence[TrainRow]:
        if message.WhichOneof("source") == "experience":
            row = self._with_images(_from_experience(message, oldest_version), message)
            return [row if self.replays_experts else replace(row, routed_experts=None)]
        if self.formatter is None:
            raise RunFailed(f"row {message.position} of the batch is training data, not a rollout")
        try:
            rows = self.formatter(
                json.loads(message.row_json),
                index=message.row_index,
                position=message.position,
                weight=message.weight,
            )
        except UserError as error:
            if not self.skips_bad_rows:
                raise
            extra = {"position": message.position, "reason": str(error)}
            logger.warning("a row of data is left out of its batch", extra=extra)
            return []
        return [replace(row, is_expert=self.mixed_with_rollouts) for row in rows]

    def _with_images(self, row: TrainRow, message: buffer_pb2.BatchRow) -> TrainRow:
        """Adds the images of a rollout. Raises: RunFailed if the model reads none."""
        blobs = [blob for blob in message.experience.blobs if blob.name == IMAGE]
        if self.images is None and blobs:
            raise RunFailed(
                f"experience {message.experience.id} has images, and the model reads text alone"
            )
        if self.images is None:
            return row
        return replace(
            row,
            images=self.images.contents(map(blob_from_proto, blobs)),
            num_image_tokens=self.images.count_tokens(row.tokens),
        )


def with_mismatched(rows: Sequence[TrainRow], max_length: int) -> list[TrainRow]:
    """Puts behind each row its prompt with the answer of the row before, as a pair of rows.

    KTO measures on them how far the policy is from the reference. The first row gets the answer of
    the last one, so that the answers are the same ones (arXiv 2402.01306, section 4.1).
    """
    others = [*rows[-1:], *rows[:-1]]
    return [
        each
        for row, other in zip(rows, others, strict=True)
        for each in (replace(row, side="chosen"), _mismatched(row, other, max_length))
    ]


def _mismatched(row: TrainRow, other: TrainRow, max_length: int) -> TrainRow:
    answer = other.tokens[other.prompt_length :]
    tokens = np.concatenate([row.tokens[: row.prompt_length], answer])[:max_length]
    length = len(tokens) - row.prompt_length
    zeros = np.zeros(length, dtype=np.float32)
    return replace(
        row,
        side="rejected",
        tokens=tokens,
        mask=other.mask[:length],
        rollout_logprobs=zeros,
        advantages=zeros,
    )


def _from_experience(message: buffer_pb2.BatchRow, oldest_version: int) -> TrainRow:
    experience = message.experience
    if experience.WhichOneof("body") != "sequence":
        raise RunFailed(f"experience {experience.id} is a pair: this algorithm takes sequences")
    sequence = sequence_from_proto(experience.sequence)
    mask = sequence.action_mask
    if experience.finish_reason in NEVER_TRAINED:
        mask = np.zeros_like(mask)
    temperature = experience.sampling.temperature
    length = sequence.response_length
    versions, num_stale_tokens = _token_versions(experience, length), 0
    if versions is not None and oldest_version:
        is_stale = mask & (versions < oldest_version)
        mask, num_stale_tokens = mask & ~is_stale, int(is_stale.sum())
    advantages = _token_array(experience, ADVANTAGES, length)
    if advantages is None:
        advantages = np.full(length, message.advantage, dtype=np.float32)
    return TrainRow(
        position=message.position,
        tokens=sequence.tokens,
        prompt_length=sequence.prompt_length,
        mask=mask,
        rollout_logprobs=sequence.rollout_logprobs,
        advantages=advantages,
        weight=message.weight,
        temperature=temperature if temperature > 0 else 1.0,
        run_reward=_run_reward(experience),
        token_rewards=_token_array(experience, TOKEN_REWARDS, length),
        teacher_logprobs=_token_array(experience, TEACHER_LOGPROBS, length),
        reward_baseline=_scalar(experience, REWARD_BASELINE),
        versions=versions,
        num_stale_tokens=num_stale_tokens,
        routed_experts=_routed_experts(experience, length),
    )


def _token_versions(experience: experience_pb2.Experience, response_length: int) -> IntArray | None:
    """Returns the weights of each response token, the newest ones where no span has it."""
    spans = experience.version_spans
    if not spans:
        return None
    versions = np.full(response_length, max(span.version for span in spans), dtype=np.int32)
    for span in spans:
        versions[span.start : span.end] = span.version
    return versions


def _run_reward(experience: experience_pb2.Experience) -> RunReward | None:
    if not experience.HasField("reward"):
        return None
    return RunReward(
        assignment_id=experience.assignment_id,
        run=experience.eid.run,
        reward=experience.reward,
        parts=dict(experience.reward_parts),
    )


def _token_array(
    experience: experience_pb2.Experience, name: str, response_length: int
) -> FloatArray | None:
    """Returns a further array of the experience, one number per response token; None if absent."""
    data = _array(experience, name)
    if data is None:
        return None
    if data.shape != (response_length,):
        raise RunFailed(
            f"experience {experience.id} has {name} of shape {list(data.shape)} "
            f"for {response_length} response tokens"
        )
    return data.astype(np.float32)


def _routed_experts(
    experience: experience_pb2.Experience, response_length: int
) -> npt.NDArray[np.int16] | None:
    """Returns the experts of each layer that sampled the tokens; None if they are not recorded."""
    data = _array(experience, ROUTED_EXPERTS)
    if data is None:
        return None
    is_whole = data.ndim == 3 and len(data) == response_length and data.dtype.kind in "iu"
    if not is_whole or data.size == 0 or data.min() < 0 or data.max() > MAX_EXPERTS:
        raise RunFailed(
            f"experience {experience.id} has {ROUTED_EXPERTS} of shape {list(data.shape)} and type "
            f"{data.dtype} for {response_length} response tokens: numbers of experts plus 1, up to "
            f"{MAX_EXPERTS}, of each token, layer and choice"
        )
    return data.astype(np.int16)


def _scalar(experience: experience_pb2.Experience, name: str) -> float | None:
    data = _array(experience, name)
    if data is None:
        return None
    if data.size != 1:
        raise RunFailed(
            f"experience {experience.id} has {name} of shape {list(data.shape)}: it is one number"
        )
    return float(data.reshape(()).astype(np.float64))


def _array(experience: experience_pb2.Experience, name: str) -> ArrayData | None:
    if name not in experience.arrays:
        return None
    return tensor_from_proto(experience.arrays[name]).data
