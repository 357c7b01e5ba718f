"""A sample's reward is the first that is given, also among several of one request."""

from pathlib import Path

from tests.integration.buffer.calls import CALL_SECONDS
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import rollout_plan
from tests.integration.buffer.process import BufferProcess
from trinity.api.v1 import query_pb2 as pb
from trinity.runtime.rpc.channel import open_channel


async def test_another_reward_in_the_same_request_is_refused(
    process: BufferProcess, buffer: Buffer, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path, await_feedback=True))
    await buffer.begin()
    await buffer.record(0)
    first, *_ = (await buffer.lease()).assignments
    await buffer.settle(buffer.complete(first, 0, Made(reward=None)))
    async with open_channel(process.address) as channel:
        looking = Looking.on(channel, buffer.pb_key)
        [sample] = await looking.list()
        given = [pb.Feedback(experience_id=sample.id, reward=one) for one in (1.0, 1.0, 0.0)]
        request = pb.GiveFeedbackRequest(key=buffer.pb_key, feedback=given)
        answer = await looking.stub.GiveFeedback(request, timeout=CALL_SECONDS)
        assert (answer.num_set, answer.num_known) == (1, 1)
        assert [one.reason for one in answer.refused] == ["its reward is 1 already"]
        [sample] = await looking.list()
    assert sample.reward == 1.0
