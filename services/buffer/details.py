"""Reads values from whole samples that some functions need and database columns lack."""

import hashlib
import math
from collections.abc import Iterable

import numpy as np
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Value

from services.buffer.domain.group import Detail
from trinity.algorithm.advantage.needs import Needs
from trinity.api.v1 import experience_pb2 as pb
from trinity.codec import sequence_from_proto
from trinity.operators.rollouts import Content
from trinity.tensor_codec import tensor_from_proto


def read_details(bodies: Iterable[bytes], needs: Needs) -> list[Detail]:
    """Returns the needed values of each sample, in the same order."""
    return [_detail(pb.Experience.FromString(body), needs) for body in bodies]


def _detail(message: pb.Experience, needs: Needs) -> Detail:
    return Detail(
        mean_logprob=_mean_logprob(message) if needs.mean_logprobs else math.nan,
        step_reward=_number(message, needs.step_reward_key),
        state=_state(message, needs.state_key),
        numbers={key: _number(message, key) for key in needs.numbers},
        content=_content(message) if needs.content else None,
    )


def _content(message: pb.Experience) -> Content:
    body = message.sequence if message.HasField("sequence") else message.pair.chosen
    return Content(
        prompt_text=body.prompt_text,
        response_text=body.response_text,
        info=MessageToDict(message.info),
        metrics={**message.metrics, **message.reward_parts},
    )


def _mean_logprob(message: pb.Experience) -> float:
    """Returns the mean over the tokens that are trained on; 0 if there are none."""
    body = message.sequence if message.HasField("sequence") else message.pair.chosen
    sequence = sequence_from_proto(body)
    own = sequence.rollout_logprobs[sequence.action_mask]
    return float(np.mean(own, dtype=np.float64)) if len(own) else 0.0


def _number(message: pb.Experience, key: str) -> float:
    """Returns the number under the key, NaN if there is none."""
    if not key:
        return math.nan
    if key in message.info:
        value = message.info.fields[key]
        kind = value.WhichOneof("kind")
        if kind == "bool_value":
            return float(value.bool_value)
        return value.number_value if kind == "number_value" else math.nan
    for numbers in (message.metrics, message.reward_parts):
        if key in numbers:
            return numbers[key]
    if key in message.arrays:
        data = tensor_from_proto(message.arrays[key]).data
        return float(data.sum()) if data.size == 1 else math.nan
    return math.nan


def _state(message: pb.Experience, key: str) -> str:
    """Returns a text that is equal for equal values under the key; empty if there is none."""
    if not key:
        return ""
    if key in message.info:
        return _text(message.info.fields[key])
    if key in message.metrics:
        return repr(message.metrics[key])
    if key in message.arrays:
        tensor = message.arrays[key]
        digest = hashlib.sha256(tensor.data).hexdigest()
        return f"{tensor.dtype} {list(tensor.shape)} {digest}"
    return ""


def _text(value: Value) -> str:
    match value.WhichOneof("kind"):
        case "string_value":
            return value.string_value
        case "number_value":
            return repr(value.number_value)
        case "null_value" | None:
            return ""
        case _:
            return value.SerializeToString(deterministic=True).hex()
