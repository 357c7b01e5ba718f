"""Lists of samples and of reports come in messages that every client takes."""

from pathlib import Path

from tests.integration.buffer.calls import CALL_SECONDS
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.plans import rollout_plan
from trinity.api.v1 import buffer_pb2
from trinity.api.v1 import query_pb2 as pb
from trinity.runtime.rpc.limits import MAX_REQUEST_BYTES

METRICS = {f"{number:0900}": 1.0 for number in range(250)}
"""Almost as many bytes as a result may have."""


async def test_samples_with_many_metrics_come_in_several_messages_that_can_be_continued(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path, batch_size=12, train_batch_size=24))
    await buffer.begin()
    await buffer.record(0)
    for assignment in (await buffer.lease()).assignments:
        for run in assignment.runs:
            result = buffer.complete(assignment, run)
            result.experiences[0].metrics.update(METRICS)
            await buffer.settle(result)
    head, rows = await _first_batch(buffer, looking)
    assert len(rows) == 24 and "rollout/num_metrics_left_out" in head.batch_metrics
    assert head.ByteSize() < MAX_REQUEST_BYTES
    messages = [message async for message in looking.stub.ListExperiences(_all(buffer))]
    assert len(messages) >= 2
    assert max(message.ByteSize() for message in messages) <= MAX_REQUEST_BYTES
    ids = [record.id for message in messages for record in message.experiences]
    assert len(set(ids)) == len(ids) == 24
    later = await looking.list(cursor=messages[0].cursor)
    assert [record.id for record in later] == ids[len(messages[0].experiences) :]


def _all(buffer: Buffer) -> pb.ListExperiencesRequest:
    return pb.ListExperiencesRequest(key=buffer.pb_key)


async def _first_batch(buffer: Buffer, looking: Looking) -> tuple[pb.StepHead, list[pb.StepRow]]:
    await buffer.batch(1)
    head, rows = pb.StepHead(), []
    request = pb.GetStepRequest(key=buffer.pb_key, step=1)
    async for message in looking.stub.GetStep(request, timeout=CALL_SECONDS):
        assert message.ByteSize() <= MAX_REQUEST_BYTES
        if message.WhichOneof("part") == "head":
            head = message.head
        else:
            rows += message.rows.rows
    return head, rows


async def test_reports_with_long_reasons_come_in_several_messages(
    buffer: Buffer, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path))
    await buffer.begin()
    await buffer.record(0)
    [first, *_] = (await buffer.lease()).assignments
    sequences = []
    for part in range(7):
        results = [buffer.fail(first, 0, 0) for _ in range(60)]
        for result in results:
            result.assignment_id = "\N{SNOWMAN}" * 3_900
        sequences += [result.sequence for result in results]
        assert len(await buffer.settle(*results)) == 60, part
    request = buffer_pb2.WatchCommitsRequest(producer=buffer.explorer_id, sequences=sequences)
    stream = buffer.stub.WatchCommits(request, timeout=CALL_SECONDS)
    told: list[int] = []
    num_messages = 0
    while len(told) < len(sequences):
        message = await stream.read()
        assert message.ByteSize() <= MAX_REQUEST_BYTES
        told += [report.sequence for report in message.reports]
        num_messages += 1
    stream.cancel()
    assert sorted(told) == sequences and num_messages >= 2
