"""What a person excluded stays out where the rest of its group is judged, and comes back else."""

import asyncio
from pathlib import Path

from tests.integration.buffer.calls import CALL_SECONDS
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import rollout_plan, with_operators
from trinity.api.v1 import buffer_pb2
from trinity.api.v1 import query_pb2 as pb
from trinity.config.plan.stage_plan import StagePlan
from trinity.types import FinishReason

READY = pb.EXPERIENCE_STATE_READY
FILTERED = pb.EXPERIENCE_STATE_FILTERED
DONE = pb.IncludeExperiencesResponse


async def leased(buffer: Buffer, plan: StagePlan) -> list[buffer_pb2.Assignment]:
    """The tasks of the first explore step."""
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    return list((await buffer.lease()).assignments)


def of(task: buffer_pb2.Assignment) -> pb.ExperienceFilter:
    return pb.ExperienceFilter(task_index=task.task_index)


async def excluded(
    buffer: Buffer, looking: Looking, task: buffer_pb2.Assignment, *rewards: float
) -> None:
    """The first runs of a task, taken out before the others end."""
    await buffer.settle(
        *(buffer.complete(task, run, Made(reward=reward)) for run, reward in enumerate(rewards))
    )
    answer = await looking.exclude(of(task), "a mistake")
    assert answer.num_excluded == len(rewards)


async def test_a_sample_whose_group_was_filtered_without_it_stays_out(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    """None of the rest has an advantage, but they were compared, and the sample was not there."""
    plan = rollout_plan(tmp_path, algorithm={"repeat_times": 4})
    task, *_ = await leased(buffer, with_operators(plan, "reward_std_filter"))
    await excluded(buffer, looking, task, 1.0, 0.0)
    await buffer.settle(*(buffer.complete(task, run, Made(reward=1.0)) for run in (2, 3)))
    await looking.until(2, pb.ExperienceFilter(states=[FILTERED]))
    assert await looking.include(of(task), dry_run=True) == DONE(num_too_late=2)
    assert await looking.include(of(task)) == DONE(num_too_late=2)


async def test_what_was_left_behind_stays_behind(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    plan = rollout_plan(tmp_path, over_rollout={"ratio": 0.34, "wait_after_min": 0.0})
    task, *others = await leased(buffer, plan)
    await excluded(buffer, looking, task, 1.0)
    await buffer.finish_all(others)
    async with asyncio.timeout(CALL_SECONDS):
        while not (await buffer.renew(task)).lost_assignment_ids:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert await looking.include(of(task)) == DONE(num_too_late=1)


async def test_what_is_never_compared_makes_no_sample_too_late(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    task, *_ = await leased(buffer, rollout_plan(tmp_path))
    await excluded(buffer, looking, task, 1.0)
    await buffer.settle(buffer.complete(task, 1, Made(finish_reason=FinishReason.ABORT)))
    await looking.until(1, pb.ExperienceFilter(states=[FILTERED]))
    assert await looking.include(of(task)) == DONE(num_included=1)
    await looking.until(1, pb.ExperienceFilter(states=[READY]))
