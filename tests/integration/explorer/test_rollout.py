"""From a lease to a committed result, over real sockets and a real broker."""

import asyncio
import threading

import pytest

from tests.integration.explorer.conftest import World
from tests.integration.explorer.peers import assignments, tokens_by_run
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1 import experience_pb2 as epb
from trinity.api.v1.explorer_pb2 import GetExplorerStatusRequest
from trinity.api.v1.explorer_pb2_grpc import ExplorerServiceStub
from trinity.data.codec import experience_from_proto
from trinity.plugins import WORKFLOWS
from trinity.runtime.rpc.channel import open_channel
from trinity.types import Experience, JsonObject
from trinity.workflows.messages import Message
from trinity.workflows.workflow import Workflow

PATIENCE_SECONDS = 60.0


async def test_every_run_of_a_stage_is_committed_once_and_the_role_finished(world: World) -> None:
    world.buffer.pending = assignments(4)
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.finished()
    assert world.buffer.num_received == len(world.buffer.complete()) == 8
    assert world.synchronizer.finished == ["main"]


async def test_an_experience_says_what_made_it(world: World) -> None:
    world.buffer.pending = assignments(1, runs=1)
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.finished()
    (message,) = world.buffer.results[1].experiences
    experience = experience_from_proto(message)
    assert (message.tenant, message.taskset, message.task_index) == ("default", "taskset", 0)
    assert experience.reward_parts == {"accuracy": 0.0} and experience.reward == 0.0
    assert experience.version_spans[0].end == experience.sequence.response_length == 3
    assert experience.sampling is not None and experience.sampling.seed > 0
    assert len(experience.chat_template_sha256) == 32


async def test_another_explorer_makes_the_same_tokens_for_the_same_run(world: World) -> None:
    seen = []
    for _ in range(2):
        world.buffer.pending = assignments(3)
        world.buffer.results.clear()
        world.buffer.leased.clear()
        world.synchronizer.finished.clear()
        async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
            await world.finished()
        seen.append(tokens_by_run(world.buffer.results.values()))
    assert seen[0] == seen[1]
    assert len(set(seen[0].values())) == 6


async def test_training_gets_the_version_it_needs_as_soon_as_it_is_published(
    world: World,
) -> None:
    world.buffer.pending = assignments(1) + assignments(1, explore_step=2, required_version=1)
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.buffer.until(lambda peer: len(peer.complete()) == 2)
        await world.publish(1)
        await world.finished()
    versions = [r.experiences[0].version_spans[0].version for r in world.buffer.results.values()]
    assert sorted(versions) == [0, 0, 1, 1]


async def test_weights_with_the_content_that_is_loaded_are_not_loaded_again(world: World) -> None:
    await world.publish(1, content="weights 0")
    world.buffer.pending = assignments(1, required_version=1)
    world.buffer.pending += assignments(1, kind=pb.ASSIGNMENT_KIND_EVAL, explore_step=0)
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.finished()
    assert len(world.buffer.complete()) == 4
    assert len(world.engine.loaded) == 1


async def test_a_run_that_fails_is_tried_again_and_every_failure_is_reported(
    world: World,
) -> None:
    world.buffer.pending = assignments(1, runs=1, taskset="missing", first_attempt=2)
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer() as stop:
        await world.buffer.until(lambda peer: len(peer.results) == 2)
        stop.set()
    failed = sorted(world.buffer.results.values(), key=lambda result: result.attempt)
    assert [result.attempt for result in failed] == [2, 3]
    assert {result.state for result in failed} == {epb.RunResult.STATE_FAILED}
    assert all("KeyError: 'missing'" in result.reason for result in failed)


async def test_a_lost_lease_aborts_its_runs_and_only_its_runs(world: World) -> None:
    world.engine.gate = asyncio.Event()
    lost, kept = world.buffer.pending = assignments(2)
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer() as stop:
        await world.runs_are_in_the_engine(4)
        world.buffer.lost = {lost.id}
        lost_at = world.buffer.num_renewals
        await world.buffer.until(lambda peer: peer.num_renewals >= lost_at + 2)
        world.engine.gate.set()
        await world.buffer.until(lambda peer: len(peer.complete()) == 2)
        stop.set()
    assert world.engine.num_aborted == 2
    assert {assignment for assignment, _ in world.buffer.complete()} == {kept.id}


async def test_who_asks_for_work_says_what_it_holds(world: World) -> None:
    """Leases that are not named were lost on their way and are for the buffer to give again."""
    first, second = world.buffer.pending = assignments(2)
    world.buffer.is_mute = True
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.buffer.until(lambda peer: len(peer.complete()) == 4 and len(peer.held) > 1)
        world.buffer.is_mute = False
        await world.buffer.change()
        await world.finished()
    assert world.buffer.held[0] == []
    assert world.buffer.held[1] == [first.id, second.id]


async def test_a_result_over_a_mebibyte_travels_by_reference(world: World) -> None:
    world.buffer.pending = assignments(1, runs=1)
    world.use_reward("tests.integration.explorer.many_parts.many_parts")
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.finished()
    assert len(world.buffer.blobs) == 1
    assert len(world.buffer.complete()) == 1


async def test_a_cancelled_stage_aborts_what_runs(world: World) -> None:
    world.engine.gate = asyncio.Event()
    world.buffer.pending = assignments(2)
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.runs_are_in_the_engine(4)
        world.buffer.cancel_reason = "a person said so"
        await world.buffer.change()
        await world.status_is(lambda member: member.activity == "idle" or world.engine.num_aborted)
    assert world.engine.num_aborted == 4
    assert world.buffer.results == {}


async def test_an_unknown_reward_fails_the_stage_with_a_sentence(world: World) -> None:
    world.use_reward("exact_match")
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.finished()
    (reason,) = world.synchronizer.failures
    assert "there is no reward 'exact_match'; close to it: exact_match_reward" in reason


async def test_on_stop_runs_may_end_and_leases_go_back(world: World) -> None:
    world.engine.gate = asyncio.Event()
    world.buffer.pending = assignments(1)
    world.buffer.drains = False
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer() as stop:
        await world.buffer.until(lambda peer: peer.num_renewals >= 1)
        stop.set()
        world.engine.gate.set()
    await world.buffer.until(lambda peer: len(peer.complete()) == 2)
    assert world.buffer.released == [[]]


@pytest.mark.parametrize(("offset", "versions"), [(0, {1: {0}, 2: {1}}), (1, {1: {1}, 2: {1}})])
async def test_newer_weights_that_are_loaded_will_do_only_with_an_offset(
    world: World, offset: int, versions: dict[int, set[int]]
) -> None:
    world.plan_with(synchronizer={"sync_offset": offset})
    await world.publish(1)
    world.engine.gate = asyncio.Event()
    world.buffer.pending = assignments(1, explore_step=2, required_version=1)
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.status_is(lambda member: member.version == 1)
        world.buffer.pending = assignments(1)
        await world.buffer.change()
        await world.buffer.until(lambda peer: len(peer.leased) == 2)
        world.engine.gate.set()
        await world.finished()
    assert versions_of(world) == versions


def versions_of(world: World) -> dict[int, set[int]]:
    """Versions that runs were made with, by explore step."""
    found: dict[int, set[int]] = {}
    for result in world.buffer.complete().values():
        (experience,) = result.experiences
        versions = found.setdefault(experience.eid.explore_step, set())
        versions |= {span.version for span in experience.version_spans}
    return found


class Stuck(Workflow):
    """Blocks where nothing interrupts it."""

    release = threading.Event()

    def run(self) -> list[Experience]:
        self.release.wait()
        return []


async def test_calls_that_outlive_their_runs_are_shown_and_hold_up_no_end(world: World) -> None:
    WORKFLOWS.register("test_stuck", Stuck)
    taskset: JsonObject = {"default_workflow_type": "test_stuck"}
    world.plan_with(
        buffer={"explorer_input": {"taskset": taskset}},
        explorer={"max_timeout": 0.1, "max_retry_times": 0, "isolate_user_code": False},
    )
    world.buffer.pending = assignments(1)
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.status_is(
            lambda member: "2 calls of users' code outlive their runs" in member.activity
        )
    Stuck.release.set()
    reasons = {result.reason for result in world.buffer.results.values()}
    assert reasons == {"it took more than 0.1 s (`explorer.max_timeout`)"}


class TwoTurns(Workflow):
    """Two answers with a question between them, of which the second is handed in."""

    is_async = True
    shares_loop = True

    async def run_async(self) -> list[Experience]:
        messages: list[Message] = [{"role": "user", "content": "a"}]
        for _ in range(2):
            [turn] = await self.model.chat_async(messages)
            messages.append({"role": "assistant", "content": turn.response_text})
            messages.append({"role": "user", "content": "again"})
        turn.reward = 0.0
        return [turn]


async def test_what_the_engine_generates_is_counted_and_nothing_else(world: World) -> None:
    WORKFLOWS.register("test_two_turns", TwoTurns)
    world.use_parts(default_workflow_type="test_two_turns")
    world.buffer.pending = assignments(1, runs=1)
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.finished()
        async with open_channel(world.synchronizer.members[-1].address) as channel:
            status = await ExplorerServiceStub(channel).GetExplorerStatus(
                GetExplorerStatusRequest(), timeout=PATIENCE_SECONDS
            )
    assert status.num_generated_tokens == 2 * world.engine.num_tokens
