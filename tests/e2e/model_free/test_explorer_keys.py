"""Runs whose explorer does more: several engines, no waiting, agents with their own clients."""

from pathlib import Path
from typing import Unpack

import pytest

from tests.support.model_free.experiment import Sections, experiment_plan, final_weights, run_to_end
from tests.support.model_free.shared_stack import ON_IT, SharedStack
from trinity.api.v1 import synchronizer_pb2 as pb

pytestmark = [ON_IT, pytest.mark.timeout(600)]


async def ended_run(
    stack: SharedStack, root: Path, name: str, **changes: Unpack[Sections]
) -> pb.Experiment:
    plan = experiment_plan(root, name=name, **changes)
    ended = await run_to_end(stack.synchronizer, plan)
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
    return ended


async def test_several_engines_give_the_weights_that_one_gives(
    tmp_path: Path, shared_stack: SharedStack, calm_weights: str
) -> None:
    engines: Sections = {"explorer": {"rollout_model": {"engine_num": 3}}}
    three = await ended_run(shared_stack, tmp_path, "three-engines", **engines)
    assert final_weights(three) == calm_weights


@pytest.mark.parametrize("partial", [False, True])
async def test_a_run_does_not_wait_for_tasks_that_it_may_leave_behind(
    partial: bool, tmp_path: Path, shared_stack: SharedStack
) -> None:
    """One task in four never ends: without the key none of its steps would."""
    workflow = "tests.support.model_free.workflows.OneInFourNeverEnds"
    await ended_run(
        shared_stack,
        tmp_path,
        f"left-behind-{partial}",
        buffer={"explorer_input": {"default_workflow_type": workflow}, "total_steps": 3},
        explorer={
            "over_rollout": {"ratio": 0.25, "wait_after_min": 0.0, "return_partial_tasks": partial}
        },
    )


async def test_an_agent_is_trained_by_the_calls_of_its_own_client(
    tmp_path: Path, shared_stack: SharedStack
) -> None:
    workflow = "tests.support.model_free.workflows.Agent"
    given: Sections = {
        "buffer": {
            "explorer_input": {"default_workflow_type": workflow},
            "train_batch_size": 16,
            "total_steps": 2,
        },
        "explorer": {"rollout_model": {"enable_openai_api": True, "enable_history": True}},
    }
    first = await ended_run(shared_stack, tmp_path, "agent", **given)
    again = await ended_run(shared_stack, tmp_path, "agent-again", **given)
    assert final_weights(first) == final_weights(again)


@pytest.mark.thorough
async def test_a_trainer_that_waits_no_longer_trains_on_what_is_ready(
    tmp_path: Path, shared_stack: SharedStack
) -> None:
    """One task in four ends only by its time limit; the steps go on without it."""
    workflow = "tests.support.model_free.workflows.OneInFourNeverEnds"
    ended = await ended_run(
        shared_stack,
        tmp_path,
        "incomplete",
        buffer={
            "explorer_input": {"default_workflow_type": workflow},
            "trainer_input": {"experience_buffer": {"max_read_timeout": 1}},
            "total_steps": 3,
        },
        explorer={"max_timeout": 6, "max_retry_times": 0},
    )
    assert ended.stages[0].final_version.version == 3
