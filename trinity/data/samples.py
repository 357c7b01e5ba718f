"""Stored samples as flat rows, the same for JSON lines, Parquet and tables."""

from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import UTC, datetime

from trinity.api.v1 import buffer_pb2, experience_pb2, query_pb2
from trinity.api.v1.query_pb2_grpc import QueryServiceStub
from trinity.data.codec import experience_from_proto
from trinity.types import Array, Experience, JsonObject, Pair, Sequence

STREAM_SECONDS = 24 * 3600.0
"""A whole run may be read slowly."""


def state_name(code: query_pb2.ExperienceState) -> str:
    """Converts `EXPERIENCE_STATE_RAW` to `raw`."""
    name = query_pb2.ExperienceState.Name(code)
    return name.removeprefix("EXPERIENCE_STATE_").lower()


def held_samples(stage: query_pb2.StoredStage) -> dict[str, int]:
    """Returns how many samples a stage holds in each state, without the derived ones."""
    held: dict[str, int] = {}
    for count in stage.counts:
        name = state_name(count.state)
        held[name] = held.get(name, 0) + count.count
    held.pop("derived", None)
    return held


def finish_reason_name(code: experience_pb2.FinishReason) -> str:
    """Converts `FINISH_REASON_STOP` to `stop`."""
    return experience_pb2.FinishReason.Name(code).removeprefix("FINISH_REASON_").lower()


def sample_row(record: query_pb2.ExperienceRecord) -> JsonObject:
    """Returns the sample's data, with its content if that was requested.

    If several batches contain it, `train_step` and related fields are of the last one.
    """
    eid = record.eid
    row: JsonObject = {
        "id": record.id,
        "stage": eid.stage,
        "explore_step": eid.explore_step,
        "position": eid.position,
        "run": eid.run,
        "attempt": eid.attempt,
        "step": eid.step,
        "suffix": eid.suffix,
        "revision": record.revision,
        "parent_id": record.parent_id or None,
        "assignment_id": record.assignment_id,
        "taskset": record.taskset,
        "task_index": record.task_index,
        "state": state_name(record.state),
        "reason": record.reason or None,
        "reward": _optional(record, "reward"),
        "shaped_reward": _optional(record, "shaped_reward"),
        "advantage": _optional(record, "advantage"),
        "version_min": _optional(record, "version_min"),
        "version_max": _optional(record, "version_max"),
        "num_tokens": record.num_tokens,
        "response_length": record.response_length,
        "finish_reason": finish_reason_name(record.finish_reason),
        "created_at": datetime.fromtimestamp(record.unix_millis / 1000, UTC).isoformat(),
        "metrics": dict(record.metrics),
        **_use(record),
    }
    if record.HasField("content"):
        row |= content_row(experience_from_proto(record.content))
    return row


def _optional(
    message: query_pb2.ExperienceRecord | query_pb2.BatchUse, name: str
) -> float | int | None:
    found: float | int | None = getattr(message, name) if message.HasField(name) else None
    return found


def _use(record: query_pb2.ExperienceRecord) -> JsonObject:
    use = record.uses[-1] if record.uses else None
    return {
        "train_step": use.step if use else None,
        "place": use.position if use else None,
        "weight": use.weight if use else None,
        "mean_ratio": _optional(use, "mean_ratio") if use else None,
        "trained_advantage": _optional(use, "trained_advantage") if use else None,
    }


def content_row(sample: Experience) -> JsonObject:
    """Returns the contents of a sample: texts, tokens, masks, log-probabilities, arrays."""
    body = sample.body
    pair = body if isinstance(body, Pair) else None
    sequence = body.chosen if isinstance(body, Pair) else body
    return {
        **_sequence(sequence),
        "rejected": _sequence(pair.rejected) if pair else None,
        "reward_parts": dict(sample.reward_parts),
        "version_spans": [asdict(span) for span in sample.version_spans],
        "sampling": _sampling(sample),
        "info": sample.info,
        "arrays": {name: _array(array) for name, array in sample.arrays.items()},
        "trace_id": sample.trace_id or None,
        "images": [
            {"sha256": image.sha256.hex(), "size": image.size, "media_type": image.media_type}
            for image in sample.blobs
        ],
    }


def _sequence(sequence: Sequence) -> JsonObject:
    return {
        "prompt": sequence.prompt_text,
        "response": sequence.response_text,
        "prompt_length": sequence.prompt_length,
        "tokens": sequence.tokens.tolist(),
        "action_mask": sequence.action_mask.tolist(),
        "rollout_logprobs": sequence.rollout_logprobs.tolist(),
    }


def _sampling(sample: Experience) -> JsonObject | None:
    used = sample.sampling
    if used is None:
        return None
    return {
        "temperature": used.temperature,
        "top_p": used.top_p,
        "top_k": used.top_k,
        "max_tokens": used.max_tokens,
        "seed": used.seed,
        "min_p": used.min_p,
        "repetition_penalty": used.repetition_penalty,
        "presence_penalty": used.presence_penalty,
        "frequency_penalty": used.frequency_penalty,
        "stop": list(used.stop),
        "logprobs": used.logprobs,
        "json_schema": used.json_schema,
    }


def _array(array: Array) -> JsonObject:
    return {
        "dtype": str(array.data.dtype),
        "shape": list(array.data.shape),
        "alignment": array.alignment.value,
        "values": array.data.tolist(),
    }


async def samples(
    queries: QueryServiceStub,
    key: buffer_pb2.StageKey,
    wanted: query_pb2.ExperienceFilter,
    *,
    limit: int = 0,
    latest_first: bool = False,
    with_content: bool = False,
) -> AsyncIterator[query_pb2.ExperienceRecord]:
    """Yields samples one by one; at most a page of them is in memory."""
    request = query_pb2.ListExperiencesRequest(
        key=key, filter=wanted, limit=limit, latest_first=latest_first, with_content=with_content
    )
    async for page in queries.ListExperiences(request, timeout=STREAM_SECONDS):
        for record in page.experiences:
            yield record


async def step_rows(
    queries: QueryServiceStub, key: buffer_pb2.StageKey, step: int
) -> tuple[query_pb2.StepHead, list[query_pb2.StepRow]]:
    """Returns a train step with the rows of its batch."""
    head, rows = query_pb2.StepHead(), []
    request = query_pb2.GetStepRequest(key=key, step=step)
    async for message in queries.GetStep(request, timeout=STREAM_SECONDS):
        if message.WhichOneof("part") == "head":
            head = message.head
        else:
            rows += list(message.rows.rows)
    return head, rows
