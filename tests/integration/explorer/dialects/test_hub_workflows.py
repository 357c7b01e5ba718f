"""The workflows of hubs: a hub's process asks at the address of a run, and may do anything."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.explorer.dialects.asking import Asked
from tests.support.stand_in_hub import ROWS, make_hub
from tests.unit.workflows.scripted import task_of
from trinity.config.model_code_policy import AGENTS_VARIABLE
from trinity.errors import UserError
from trinity.runtime.security.credentials import VARIABLE
from trinity.types import Experience
from trinity.user_code.hubs import process
from trinity.user_code.hubs.place import HUBS, HUBS_VARIABLE, HubPlace
from trinity.user_code.hubs.process import HubFailed, close_hubs, shared_hub
from trinity.workflows.hub_workflow import HubWorkflow
from trinity.workflows.openenv_workflow import OpenEnvWorkflow
from trinity.workflows.verifiers_workflow import VerifiersWorkflow

VERIFIERS = HubPlace("verifiers", "sums", {})
OPENENV = HubPlace("openenv", "sums", {})


@pytest.fixture(autouse=True)
async def hubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setenv(HUBS_VARIABLE, str(tmp_path / "hubs"))
    monkeypatch.chdir(tmp_path)
    for hub in HUBS:
        make_hub(tmp_path / "hubs", hub)
    yield
    await close_hubs()


async def run(
    asked: Asked,
    kind: type[HubWorkflow] = VerifiersWorkflow,
    *,
    place: HubPlace | None = None,
    workflow_args: dict[str, Any] | None = None,
    **row: Any,
) -> list[Experience]:
    task = task_of({**ROWS[1], **row}, workflow_args=workflow_args or {})
    task.source = str(place or (VERIFIERS if kind is VerifiersWorkflow else OPENENV))
    task.format_args.system_prompt = ""
    made: list[Experience] = await kind(task=task, model=asked.model).run_async()
    return made


async def pid_of(place: HubPlace) -> int:
    async with shared_hub(place) as hub:
        return hub._worker.process.pid


async def test_calls_of_an_environment_are_trained_with_its_rewards_and_metrics(
    asked: Asked,
) -> None:
    asked.will_say("2")
    (sample,) = await run(asked)
    assert sample.response_text == "2"
    assert sample.reward_parts == {"right": 1.0, "short": 0.25} and sample.reward == 1.25
    assert sample.metrics == {
        "right": 1.0,
        "short": 0.25,
        "digits": 2.0,
        "agent_calls": 1.0,
        "agent_pruned_calls": 0.0,
    }
    assert asked.chats.messages == [{"role": "user", "content": "1+1="}]


async def test_calls_that_an_agent_makes_for_itself_are_counted_and_not_trained(
    asked: Asked,
) -> None:
    asked.will_say("Sums", "3", "2")
    samples = await run(asked, does="titles")
    assert "Sums" not in "".join(sample.response_text for sample in samples)
    assert samples[-1].response_text.endswith("2")
    assert samples[0].metrics["agent_calls"] == 3
    assert samples[0].metrics["agent_pruned_calls"] == 1


async def test_answers_are_the_actions_of_an_environment(asked: Asked, tmp_path: Path) -> None:
    asked.will_say("3", "2")
    samples = await run(asked, OpenEnvWorkflow)
    assert {sample.reward for sample in samples} == {0.5}
    assert samples[0].metrics["env_steps"] == 2 and samples[0].metrics["no_action"] == 0
    assert [m["content"] for m in asked.chats.messages] == ["1+1=", "3", "no"]
    assert num_ended(tmp_path) == 1


@pytest.mark.parametrize(
    ("said", "steps", "no_action"), [(["?"], 1, 1.0), (["3", "4", "5"], 3, 0.0)]
)
async def test_an_episode_ends_with_an_answer_that_is_no_action_or_after_max_steps(
    asked: Asked, said: list[str], steps: int, no_action: float
) -> None:
    asked.will_say(*said)
    samples = await run(asked, OpenEnvWorkflow, workflow_args={"max_steps": 3})
    assert {sample.reward for sample in samples} == {0.0}
    assert samples[0].metrics["env_steps"] == steps
    assert samples[0].metrics["no_action"] == no_action


async def test_without_a_system_prompt_the_model_is_given_the_schema(asked: Asked) -> None:
    asked.will_say("2")
    task = task_of({**ROWS[1]})
    task.source = str(OPENENV)
    await OpenEnvWorkflow(task=task, model=asked.model).run_async()
    assert '{"required": ["answer"]}' in str(asked.chats.messages[0]["content"])


@pytest.mark.parametrize(
    ("does", "error", "words"),
    [
        ("nothing", UserError, "asked the model nothing at the address of the run"),
        ("die", HubFailed, r"process of verifiers for sums ended \(by SIGKILL\); it printed"),
        ("flood", HubFailed, r"ended \(with exit code 3\); it said last: x+\nthe end$"),
        ("rubbish", HubFailed, "wrote a line that is no answer"),
        ("raise", HubFailed, "verifiers: KeyError: 'no such thing'"),
        ("wrong", HubFailed, "answered .'what'., which is no episode"),
        ("infinite", HubFailed, "no finite numbers"),
        ("fail", HubFailed, "verifiers: HarnessError: exited 1"),
        ("two", HubFailed, "several agents"),
    ],
)
async def test_a_hub_that_goes_wrong_is_a_failed_run_that_says_why(
    asked: Asked, does: str, error: type[Exception], words: str
) -> None:
    if does == "infinite":
        asked.will_say("2")
        await asked.openai.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "a"}]
        )
    with pytest.raises(error, match=words) as failed:
        await run(asked, does=does)
    assert len(str(failed.value)) < 2_000


async def test_an_observation_that_is_none_fails_the_run(asked: Asked) -> None:
    asked.will_say("2")
    with pytest.raises(HubFailed, match="which is no observation"):
        await run(asked, OpenEnvWorkflow, does="wrong")


async def test_the_next_run_starts_a_process_again(asked: Asked) -> None:
    before = await pid_of(VERIFIERS)
    assert await pid_of(VERIFIERS) == before
    with pytest.raises(HubFailed):
        await run(asked, does="die")
    asked.will_say("2")
    assert await run(asked)
    assert await pid_of(VERIFIERS) != before


async def test_a_run_that_is_given_up_ends_in_the_hub_and_leaves_others_alone(
    asked: Asked, tmp_path: Path
) -> None:
    before = await pid_of(VERIFIERS)
    mark = tmp_path / "waits"
    await given_up(asked, "wait", mark)
    while is_there(mark):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    assert await pid_of(VERIFIERS) == before


async def test_a_process_that_hangs_is_ended_with_the_run_that_was_given_up(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "PING_SECONDS", 0.5)
    before = await pid_of(VERIFIERS)
    await given_up(asked, "hang", tmp_path / "hangs")
    async with shared_hub(VERIFIERS) as hub:
        assert hub._worker.process.pid == before
        with pytest.raises(HubFailed, match="process of verifiers for sums"):
            await hub.call("rows", count=1)
    assert await pid_of(VERIFIERS) != before


def num_ended(folder: Path) -> int:
    return len(list(folder.glob("ended-*")))


def is_there(mark: Path) -> bool:
    return mark.exists()


async def given_up(asked: Asked, does: str, mark: Path) -> None:
    going_on = asyncio.create_task(run(asked, does=does, path=str(mark)))
    while not is_there(mark):
        await asyncio.sleep(0.02)
        assert not going_on.done()
    going_on.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going_on


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("broken", UserError, "it cannot load broken: SyntaxError"),
        ("gone", HubFailed, r"for gone ended \(with exit code 4\)"),
        ("silent", HubFailed, "did not answer `load` in 2 s"),
    ],
)
async def test_a_task_set_that_does_not_load_says_why(
    asked: Asked, path: str, error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path == "silent":
        monkeypatch.setattr(process, "LOAD_SECONDS", 2.0)
    with pytest.raises(error, match=words):
        await run(asked, place=HubPlace("verifiers", path, {}))


async def test_a_missing_environment_is_one_sentence(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HUBS_VARIABLE, "/nowhere")
    with pytest.raises(UserError, match=r"/nowhere/verifiers, is missing: run `trinity setup hub"):
        await run(asked)


async def test_where_tenants_meet_the_operator_decides(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match=f"`verifiers` would start .*{AGENTS_VARIABLE}=true"):
        await run(asked)
    monkeypatch.setenv(AGENTS_VARIABLE, "true")
    asked.will_say("2")
    assert await run(asked)


async def test_rows_of_another_source_are_named(asked: Asked) -> None:
    with pytest.raises(UserError, match="let `default_workflow_type: verifiers` be the taskset's"):
        await run(asked, place=OPENENV)
