"""Every attempt ends with an outcome, and its experiences are complete."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from services.explorer.engine.interface import EngineDied
from services.explorer.rollout.workflow_factory import WorkflowFactory
from services.explorer.types import attempt_result_to_proto
from tests.unit.explorer.builders import (
    ArithmeticEngine,
    CharacterTokenizer,
    build_assignment,
    build_plan,
)
from tests.unit.explorer.runs import outcome_of, taskset
from trinity.errors import UserError
from trinity.plugins import REWARDS, WORKFLOWS
from trinity.rewards.reward import REWARD_POOL
from trinity.runtime.telemetry import metrics
from trinity.runtime.threads import DaemonThreads
from trinity.types import EID, Experience, VersionSpan, experience_id
from trinity.workflows.simple_workflow import SimpleWorkflow
from trinity.workflows.workflow import Workflow


class Blocking(Workflow):
    """A workflow of the kind that needs a thread."""

    def run(self) -> list[Experience]:
        experiences = self.model.chat([{"role": "user", "content": self.task.task_desc}], n=2)
        for experience in experiences:
            experience.reward = 1.0
        return experiences


class Stubborn(Workflow):
    """Tries again after any error, and blocks in between for longer than it may."""

    release = threading.Event()
    may_end = threading.Event()
    endings: ClassVar[list[str]] = []

    def run(self) -> list[Experience]:
        try:
            while True:
                try:
                    self.model.chat([{"role": "user", "content": "again"}])
                    self.release.wait()
                except Exception as error:
                    self.endings.append(f"caught {error!r}")
        except BaseException as error:
            self.endings.append(type(error).__name__)
            self.may_end.wait()
            raise


class Leaving(Workflow):
    """Cancels itself."""

    is_async = True
    shares_loop = True

    async def run_async(self) -> list[Experience]:
        raise asyncio.CancelledError


class Gap(Workflow):
    """Says that other weights made a part of the response than any."""

    is_async = True
    shares_loop = True

    async def run_async(self) -> list[Experience]:
        (experience,) = await self.model.chat_async([{"role": "user", "content": "a"}])
        (span,) = experience.version_spans
        return [replace(experience, version_spans=(replace(span, end=span.end - 1),), reward=0.0)]


class Twice(SimpleWorkflow):
    async def run_async(self) -> list[Experience]:
        return [*await super().run_async()] * 2


class Emptying(Workflow):
    """Takes what it needs out of its task."""

    is_async = True
    shares_loop = True

    async def run_async(self) -> list[Experience]:
        question = str(self.task.raw_task.pop("question"))
        experiences = await self.model.chat_async([{"role": "user", "content": question}])
        return [replace(experience, reward=1.0) for experience in experiences]


class Enormous(Workflow):
    """A workflow whose reward is larger than float32 holds."""

    is_async = True
    shares_loop = True

    async def run_async(self) -> list[Experience]:
        (experience,) = await self.model.chat_async([{"role": "user", "content": "a"}])
        return [replace(experience, reward=-1e39)]


class Nothing(Workflow):
    """A workflow that forgets to answer."""

    is_async = True
    shares_loop = True

    async def run_async(self) -> list[Experience]:
        return []


def failing_reward(response: str) -> dict[str, float]:
    raise RuntimeError(f"cannot score {response!r:.1}")


@pytest.fixture(autouse=True, scope="module")
def registered() -> None:
    WORKFLOWS.register("test_blocking", Blocking)
    WORKFLOWS.register("test_nothing", Nothing)
    WORKFLOWS.register("test_twice", Twice)
    WORKFLOWS.register("test_enormous", Enormous)
    WORKFLOWS.register("test_stubborn", Stubborn)
    WORKFLOWS.register("test_leaving", Leaving)
    WORKFLOWS.register("test_gap", Gap)
    WORKFLOWS.register("test_emptying", Emptying)
    REWARDS.register("test_failing", failing_reward)


async def test_a_complete_run_says_where_it_came_from_and_with_which_weights(
    tmp_path: Path,
) -> None:
    outcome = await outcome_of(tmp_path)
    (experience,) = outcome.experiences
    assert experience.eid == EID(stage="main", batch=1, task=0, run=1, attempt=2, suffix="")
    assert experience.version_spans == (VersionSpan(start=0, end=3, version=4, incarnation=2),)
    message = attempt_result_to_proto(outcome)
    expected = experience_id(message.assignment_id, 1, 2, 0, "")
    assert message.experiences[0].id == expected


async def test_the_tokens_do_not_depend_on_the_attempt_or_on_the_assignments_id(
    tmp_path: Path,
) -> None:
    once = await outcome_of(tmp_path)
    again = await outcome_of(
        tmp_path, assignment=build_assignment(id="aaaaaaaa-0000-4000-8000-000000000000")
    )
    tokens = [list(o.experiences[0].sequence.tokens) for o in (once, again)]
    assert tokens[0] == tokens[1]


async def test_a_blocking_workflow_runs_in_a_thread(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, default_workflow_type="test_blocking")
    assert [e.eid.step for e in outcome.experiences if e.eid] == [0, 1]
    assert outcome.is_complete


async def test_a_failure_says_what_and_where(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, default_reward_fn_type="test_failing")
    assert not outcome.is_complete
    assert "RuntimeError: cannot score" in outcome.failure
    assert "test_runner.py, line" in outcome.failure


async def test_a_workflow_without_experiences_failed(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, default_workflow_type="test_nothing")
    assert "Nothing returned no list of experiences" in outcome.failure


async def test_one_experience_in_two_places_failed(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, default_workflow_type="test_twice")
    assert "Twice returned one experience as number 1 and number 2" in outcome.failure


async def test_a_reward_that_no_gradient_could_hold_failed(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, default_workflow_type="test_enormous")
    assert "Enormous returned -1e+39 as 'reward'" in outcome.failure
    assert "of 1e+30 at most" in outcome.failure


async def test_a_run_that_takes_too_long_failed_and_is_aborted(tmp_path: Path) -> None:
    engine = ArithmeticEngine(gate=asyncio.Event())
    outcome = await outcome_of(tmp_path, engine, timeout_seconds=0.01)
    assert "more than 0.01 s" in outcome.failure
    assert engine.num_aborted == 1


@pytest.fixture
def stubborn() -> Iterator[type[Stubborn]]:
    Stubborn.endings.clear()
    yield Stubborn
    Stubborn.may_end.set()
    Stubborn.release.set()
    join_tests()
    Stubborn.may_end.clear()
    Stubborn.release.clear()


async def test_a_thread_that_waits_for_the_model_ends_with_its_time(
    tmp_path: Path, stubborn: type[Stubborn]
) -> None:
    engine = ArithmeticEngine(gate=asyncio.Event())
    stubborn.may_end.set()
    outcome = await outcome_of(
        tmp_path, engine, timeout_seconds=0.05, default_workflow_type="test_stubborn"
    )
    assert "more than 0.05 s" in outcome.failure
    assert (engine.num_active, engine.num_aborted) == (0, 1)


async def test_a_thread_that_outlives_its_time_gets_no_more_tokens_and_is_counted(
    tmp_path: Path, stubborn: type[Stubborn]
) -> None:
    engine, threads = ArithmeticEngine(), DaemonThreads(name="test", max_threads=1)
    outcome = await outcome_of(
        tmp_path,
        engine,
        timeout_seconds=0.05,
        threads=threads,
        default_workflow_type="test_stubborn",
    )
    assert "more than 0.05 s" in outcome.failure
    assert threads.num_abandoned == 1
    num_calls = len(engine.seeds)
    stubborn.release.set()
    stubborn.may_end.set()
    await asyncio.to_thread(join_tests)
    assert stubborn.endings == ["AttemptOver"]
    assert len(engine.seeds) == num_calls
    assert threads.num_abandoned == 0


def join_tests() -> None:
    for thread in threading.enumerate():
        if thread.name == "test":
            thread.join()


async def test_a_reward_that_never_returns_costs_its_run_alone(tmp_path: Path) -> None:
    release = threading.Event()
    REWARDS.register("test_endless", lambda: {"score": float(release.wait())})
    outcome = await outcome_of(tmp_path, timeout_seconds=0.5, default_reward_fn_type="test_endless")
    assert "more than 0.5 s" in outcome.failure
    assert REWARD_POOL.num_abandoned == 1
    release.set()


async def test_a_run_waits_for_a_thread_without_losing_time(tmp_path: Path) -> None:
    threads, release = DaemonThreads(name="test", max_threads=1), threading.Event()
    begun = asyncio.Event()
    other = asyncio.create_task(threads.run_in_thread(release.wait, begun.set))
    await begun.wait()
    asyncio.get_running_loop().call_later(1.3, release.set)
    outcome = await outcome_of(
        tmp_path, timeout_seconds=1.0, threads=threads, default_workflow_type="test_blocking"
    )
    await other
    assert outcome.is_complete


async def test_a_workflow_that_cancels_itself_failed(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, default_workflow_type="test_leaving")
    assert "the workflow cancelled itself" in outcome.failure


async def test_what_the_buffer_would_refuse_is_a_failure_here(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, default_workflow_type="test_gap")
    assert "version_spans end at 2, the response has 3 tokens" in outcome.failure


async def test_tokens_of_finished_calls_are_lost_with_their_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[float] = []
    monkeypatch.setattr(metrics.LOST_TOKENS, "_record", lambda value, _: lost.append(value))
    await outcome_of(tmp_path)
    assert lost == []
    await outcome_of(tmp_path, default_workflow_type="test_gap")
    assert lost == [3]


async def test_what_a_run_does_to_its_task_reaches_no_other_run(tmp_path: Path) -> None:
    assignment = build_assignment()
    for _ in assignment.runs:
        outcome = await outcome_of(
            tmp_path, assignment=assignment, default_workflow_type="test_emptying"
        )
        assert outcome.failure == ""


async def test_a_dead_engine_is_no_fault_of_the_run(tmp_path: Path) -> None:
    engine = ArithmeticEngine(died=EngineDied("gone"))
    with pytest.raises(EngineDied):
        await outcome_of(tmp_path, engine)


async def test_a_row_without_its_prompt_column_is_named(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, assignment=build_assignment(task_json='{"query": "1+1="}'))
    assert "no column 'question'; its columns are query" in outcome.failure


def test_a_plan_with_an_unknown_reward_is_refused_before_any_run(tmp_path: Path) -> None:
    plan = build_plan(tmp_path, buffer=taskset(default_reward_fn_type="exact_match"))
    with pytest.raises(UserError, match="exact_match_reward"):
        WorkflowFactory(
            plan=plan.stages[0],
            seed=0,
            generator=ArithmeticEngine(),
            tokenizer=CharacterTokenizer(),
        )
