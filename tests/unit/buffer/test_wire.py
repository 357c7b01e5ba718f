"""Messages from the stream: what is understood, what is refused, what nobody can read."""

import uuid
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.aio.msg import Msg

from services.buffer.ingest.ingest import BUNDLE_BYTES, bundles
from services.buffer.ingest.wire import (
    BATCH,
    COUNTED_BYTES,
    MAX_REASON_LENGTH,
    MAX_RESULTS,
    Unparsable,
    count_fields,
    decode_batch,
    decode_sample,
    subject_of,
)
from tests.unit.buffer.builders import ASSIGNMENT, KEY, PRODUCER
from trinity.api.v1 import experience_pb2 as pb
from trinity.data.codec import SampleRef, experience_to_proto
from trinity.types import EID, Experience, Sequence, VersionSpan

SUBJECT = subject_of(KEY)
REF = SampleRef(
    tenant=KEY.tenant,
    experiment_id=KEY.experiment_id,
    assignment_id=ASSIGNMENT,
    taskset="train",
    task_index=5,
)


def sample(step: int = 0) -> pb.Experience:
    body = Sequence(
        tokens=np.arange(5, dtype=np.int32),
        prompt_length=2,
        action_mask=np.ones(3, dtype=np.bool_),
        rollout_logprobs=np.zeros(3, dtype=np.float32),
        prompt_text="p\x00",
        response_text="r",
    )
    spans = (
        VersionSpan(start=0, end=1, version=4, incarnation=1),
        VersionSpan(start=1, end=3, version=6, incarnation=1),
    )
    eid = EID(stage=KEY.stage, batch=1, task=2, run=0, step=step, suffix="")
    experience = Experience(body=body, eid=eid, reward=1.0, version_spans=spans)
    return experience_to_proto(experience, REF)


def result(*experiences: pb.Experience) -> pb.RunResult:
    return pb.RunResult(
        tenant=KEY.tenant,
        experiment_id=KEY.experiment_id,
        stage=KEY.stage,
        assignment_id=ASSIGNMENT,
        state=pb.RunResult.STATE_COMPLETE,
        experiences=experiences or [sample()],
        sequence=1,
    )


def parcel_of(*results: pb.RunResult) -> bytes:
    return pb.RunResultBatch(producer=PRODUCER, results=results).SerializeToString()


def test_a_result_is_understood_with_what_the_buffer_looks_at() -> None:
    parcel = decode_batch(SUBJECT, parcel_of(result(sample(0), sample(1))))
    [understood] = parcel.results
    assert (understood.explore_step, understood.position, understood.task_index) == (1, 2, 5)
    first = understood.experiences[0]
    assert (first.version_min, first.version_max) == (4, 6)
    assert (first.num_tokens, first.response_length) == (5, 3)
    assert pb.Experience.FromString(first.body) == sample(0)
    assert decode_sample(first.body).prompt == "p\ufffd"


def spoilt(what: str) -> pb.RunResult:
    one = result()
    own = one.experiences[0]
    match what:
        case "stage":
            one.stage = "other"
        case "sequence":
            one.sequence = 0
        case "state":
            one.state = pb.RunResult.STATE_UNSPECIFIED
        case "failed":
            one.state = pb.RunResult.STATE_FAILED
        case "id":
            own.id = str(uuid.UUID(int=9))
        case "eid":
            own.eid.run = 3
        case "owner":
            own.assignment_id = str(uuid.UUID(int=9))
        case "gap":
            own.version_spans[1].start = 2
        case "short":
            own.version_spans[1].end = 2
        case "reward":
            own.reward = float("inf")
        case "no reward":
            own.ClearField("reward")
        case "shape":
            own.sequence.tokens.shape[0] = 6
        case "order":
            one.experiences.append(sample(0))
        case "suffix":
            own.eid.suffix = "\u00e9" * 251
        case "bools":
            own.sequence.action_mask.data = b"\x01\x02\x01"
    return one


@pytest.mark.parametrize(
    "what",
    [
        *("stage", "sequence", "state", "failed", "id", "eid", "owner", "gap", "short"),
        *("reward", "no reward", "shape", "order", "suffix", "bools"),
    ],
)
def test_a_result_that_contradicts_itself_is_refused_alone(what: str) -> None:
    parcel = decode_batch(SUBJECT, parcel_of(spoilt(what), result()))
    assert len(parcel.results) == 1
    [refused] = parcel.invalid
    assert refused.producer == PRODUCER and refused.reason


@pytest.mark.parametrize(
    "batch",
    [
        pb.RunResultBatch(producer=PRODUCER),
        pb.RunResultBatch(producer=PRODUCER, results=[result()], blob_sha256=b"1" * 32),
        pb.RunResultBatch(producer=PRODUCER, blob_sha256=b"1" * 33),
        pb.RunResultBatch(producer=PRODUCER, results=[pb.RunResult()] * (MAX_RESULTS + 1)),
    ],
)
def test_a_message_of_another_form_is_put_away_whole(batch: pb.RunResultBatch) -> None:
    with pytest.raises(Unparsable):
        decode_batch(SUBJECT, batch.SerializeToString())


@pytest.mark.parametrize(
    "body",
    [
        b"\x12\x00" * 2**20,
        pb.RunResultBatch(
            producer=PRODUCER, results=[pb.RunResult(experiences=[pb.Experience()] * 2**20)]
        ).SerializeToString(),
        parcel_of(result(pb.Experience(arrays={"a": pb.Tensor(shape=[1] * 2**20)}))),
    ],
)
def test_a_large_message_of_countless_parts_is_not_even_parsed(body: bytes) -> None:
    assert len(body) > COUNTED_BYTES
    with pytest.raises(Unparsable, match="parts"):
        decode_batch(SUBJECT, body)


def test_a_large_message_of_few_parts_is_read() -> None:
    large = sample()
    large.sequence.prompt_text = "x" * 2**21
    assert count_fields(parcel_of(result(large)), BATCH, 1_000) < 200
    assert len(decode_batch(SUBJECT, parcel_of(result(large))).results) == 1


def test_what_is_said_of_a_refused_result_is_short() -> None:
    one = result()
    one.experiences[0].id = "x" * 10_000
    [refused] = decode_batch(SUBJECT, parcel_of(one)).invalid
    assert len(refused.reason) == MAX_REASON_LENGTH


def _metrics(one: pb.RunResult) -> None:
    one.metrics.update({f"{number:0900}": 1.0 for number in range(300)})


def _names_of_samples(one: pb.RunResult) -> None:
    one.experiences[0].metrics.update({f"{number:0900}": 1.0 for number in range(300)})


def _info(one: pb.RunResult) -> None:
    one.experiences[0].info.update({"log": "x" * 5 * 2**20})


def _suffix(one: pb.RunResult) -> None:
    one.experiences[0].eid.suffix = "x" * 100_000


def _schema(one: pb.RunResult) -> None:
    one.experiences[0].sampling.json_schema = "x" * 2 * 2**20


def _sample(one: pb.RunResult) -> None:
    one.experiences[0].arrays["a"].data = bytes(49 * 2**20)


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (_metrics, "RunResult.metrics"),
        (_names_of_samples, "Experience.metrics"),
        (_info, "Experience.info"),
        (_suffix, "Eid.suffix"),
        (_schema, "SamplingParams.json_schema"),
        (_sample, "Experience"),
    ],
)
def test_a_result_is_held_by_the_table_of_the_requests(
    spoil: Callable[[pb.RunResult], None], field: str
) -> None:
    """The result beside it is taken, and so is the same one before it was spoiled."""
    good, bad = result(), result()
    bad.sequence = 8
    assert len(decode_batch(SUBJECT, parcel_of(good, bad)).results) == 2
    spoil(bad)
    batch = decode_batch(SUBJECT, parcel_of(good, bad))
    [refused] = batch.invalid
    assert len(batch.results) == 1 and refused.sequence == 8
    assert refused.reason.startswith(f"{field}: has ") and "bytes, and at most" in refused.reason


def message(body: bytes) -> Msg:
    return Msg(_client=Client(), data=body)


def test_messages_are_taken_in_bundles_that_fit_and_references_alone() -> None:
    reference = pb.RunResultBatch(producer=PRODUCER, blob_sha256=b"1" * 32).SerializeToString()
    small, large = parcel_of(result()), b"x" * (BUNDLE_BYTES - 10)
    bodies = [small, reference, small, small, large, small, b"garbage"]
    taken = [[one.data for one in some] for some in bundles([message(body) for body in bodies])]
    assert taken == [[small], [reference], [small, small], [large], [small, b"garbage"]]


@given(st.binary(max_size=200))
def test_garbage_is_unparsable_or_refused_and_nothing_else(body: bytes) -> None:
    try:
        parcel = decode_batch(SUBJECT, body)
    except Unparsable:
        return
    assert parcel.results == ()


@given(st.integers(min_value=0), st.integers(min_value=0, max_value=255))
def test_a_flipped_byte_is_never_taken_for_something_else_than_a_result(
    place: int, value: int
) -> None:
    body = bytearray(parcel_of(result()))
    body[place % len(body)] = value
    try:
        parcel = decode_batch(SUBJECT, bytes(body))
    except Unparsable:
        return
    assert all(one.key == KEY for one in parcel.results)
