"""The workflow `agent`: a program asks at the address of its run, and what it asked is trained."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.explorer.dialects.asking import Asked
from tests.unit.workflows.scripted import task_of
from trinity.config.model_code_policy import AGENTS_VARIABLE
from trinity.errors import UserError
from trinity.rewards.reward import BoundReward
from trinity.runtime.security.credentials import VARIABLE
from trinity.types import Experience
from trinity.workflows.agent_workflow import AgentFailed, AgentWorkflow

ASKING = """
import json, os, sys, urllib.request
def ask(text):
    chat.append({"role": "user", "content": text})
    body = {"model": os.environ["TRINITY_MODEL"], "messages": chat}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    chat.append(answer)
    return answer["content"]
chat = []
"""
TWO_TURNS = (
    ASKING
    + """
ask(sys.argv[1])
open("said", "w").write(ask("sure?"))
print(json.load(open("task.json")))
"""
)


def right(response: str, truth: object, **_: Any) -> float:
    return float(str(truth) in response)


async def run(asked: Asked, code: str, *, reward: bool = True, **args: Any) -> list[Experience]:
    command = [sys.executable, "-c", code, "{prompt}"]
    task = task_of(
        {"question": "1+1?", "answer": "2"},
        reward=BoundReward(right, {}, "right") if reward else None,
        workflow_args={"command": command, **args},
    )
    made: list[Experience] = await AgentWorkflow(task=task, model=asked.model).run_async()
    return made


async def test_the_calls_of_a_program_are_scored_by_its_last_answer(asked: Asked) -> None:
    asked.will_say("I think it is 3.", "It is 2.")
    samples = await run(asked, TWO_TURNS)
    assert [sample.reward for sample in samples] == [1.0] * len(samples)
    assert samples[-1].response_text.endswith("It is 2.")
    assert samples[0].metrics["agent_calls"] == 2
    assert [message["content"] for message in asked.chats.messages] == [
        *("1+1?", "I think it is 3.", "sure?"),
    ]


async def test_a_command_may_judge_what_the_agent_left_in_its_folder(asked: Asked) -> None:
    asked.will_say("I think it is 3.", "It is 2.")
    judge = (
        "import json; truth = json.load(open('row.json'))['answer']\n"
        "print('so'); print(0.5 * (truth in open('said').read()))"
    )
    samples = await run(
        asked, TWO_TURNS, reward=False, reward_command=[sys.executable, "-c", judge]
    )
    assert samples[0].reward == 0.5


async def test_an_agent_sees_neither_truth_nor_secrets(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_BUFFER_DSN", "of the buffer")
    asked.will_say("ok")
    told = "ask(open('task.json').read() + str(dict(os.environ)))"
    await run(asked, ASKING + told, environment={"GIVEN": "this"})
    seen = asked.chats.messages[0]["content"]
    assert "1+1?" in seen and "'GIVEN': 'this'" in seen
    assert '"answer"' not in seen and "of the buffer" not in seen


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        ("print('hello')", UserError, "asked the model nothing.*hello"),
        ("import sys; sys.exit('no luck')", AgentFailed, "ended with 1; it said last: no luck"),
        ("import os; os.kill(os.getpid(), 9)", AgentFailed, "by SIGKILL; it printed nothing"),
        (f"{ASKING}\nfor _ in range(9): ask('go on')", AgentFailed, "HTTP Error 400"),
    ],
)
async def test_an_agent_that_goes_wrong_is_a_failed_run_that_says_why(
    asked: Asked, code: str, error: type[Exception], words: str
) -> None:
    asked.will_say(*["ok"] * 3)
    with pytest.raises(error, match=words):
        await run(asked, code, max_calls=3)


async def test_what_an_agent_has_started_ends_with_its_run(asked: Asked, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    forks = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)"
    )
    going_on = asyncio.create_task(run(asked, forks))
    while not pids.exists() or len(pids.read_text().split()) < 2:
        await asyncio.sleep(0.05)
        assert not going_on.done()
    going_on.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going_on
    for pid in map(int, pids.read_text().split()):
        while is_alive(pid):  # noqa: ASYNC110  # its parent was killed with it
            await asyncio.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_output_without_end_is_cut(asked: Asked) -> None:
    asked.will_say("It is 2.")
    flood = "ask('a')\nfor _ in range(200): print('x' * 100_000)\nsys.exit('the end')"
    with pytest.raises(AgentFailed, match=r"the end$") as failed:
        await run(asked, ASKING + flood)
    assert len(str(failed.value)) < 2_000


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"command": None}, "command is missing"),
        ({"command": "a 'b"}, "No closing quotation"),
        ({"command": [1]}, "give a text or a list of words"),
        ({"command": "no-such-program"}, "no program `no-such-program`"),
        ({"environment": {"A": 1}}, "give names with texts"),
        ({"max_calls": 0}, "a whole number from 1 on"),
        ({"comand": "a"}, "comand"),
    ],
)
async def test_wrong_arguments_are_named(asked: Asked, args: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        await run(asked, "", **args)


async def test_where_tenants_meet_the_operator_decides(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match=f"{AGENTS_VARIABLE}=true"):
        await run(asked, TWO_TURNS)
    monkeypatch.setenv(AGENTS_VARIABLE, "true")
    asked.will_say("2", "2")
    assert await run(asked, TWO_TURNS)
