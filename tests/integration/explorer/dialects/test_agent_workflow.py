"""The workflow `agent`: a program asks at the address of its run, and what it asked is trained."""

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.explorer.dialects.asking import Asked
from tests.unit.runtime.test_sandbox import needs_sandbox
from tests.unit.workflows.scripted import ScriptedEngine, scripted_model, task_of
from trinity.config.model_code_policy import AGENTS_VARIABLE
from trinity.errors import UserError
from trinity.plugins import PLUGIN_DIRS_VARIABLE
from trinity.rewards.reward import BoundReward
from trinity.runtime.security.credentials import VARIABLE
from trinity.types import Experience, JsonValue
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
    assert samples[0].metrics["agent_pruned_calls"] == 0
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


class Judge:
    """An auxiliary model that grades whatever it is shown."""

    def __init__(self, says: str) -> None:
        self._says, self.seen = says, ""

    async def chat_async(self, messages: list[Any]) -> list[Experience]:
        self.seen = messages[-1]["content"]
        (answer,) = await scripted_model(ScriptedEngine([self._says])).chat_async(messages)
        return [answer]


async def test_another_model_may_judge_the_last_answer(asked: Asked) -> None:
    task = task_of(
        {"question": "1+1?", "answer": "2", "rubric": [{"description": "it is 2", "weight": 3}]},
        workflow_args={
            "command": [sys.executable, "-c", TWO_TURNS, "{prompt}"],
            "rubric_judge": True,
        },
    )
    with pytest.raises(UserError, match="another model as the judge"):
        await AgentWorkflow(task=task, model=asked.model).run_async()
    asked.will_say("I think it is 3.", "It is 2.")
    judge = Judge("well <grade>7</grade>")
    models: Any = [judge]
    workflow = AgentWorkflow(task=task, model=asked.model, auxiliary_models=models)
    samples: list[Experience] = await workflow.run_async()
    assert "It is 2." in judge.seen and "it is 2" in judge.seen and "3." not in judge.seen
    assert {sample.reward for sample in samples} == {0.7}
    assert samples[0].metrics["judge_success"] == 1


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
        ("import os, sys; sys.exit(str(dict(os.environ)))", AgentFailed, r"sessions/\*\*\*"),
    ],
)
async def test_an_agent_that_goes_wrong_is_a_failed_run_that_says_why(
    asked: Asked, code: str, error: type[Exception], words: str
) -> None:
    asked.will_say(*["ok"] * 3)
    with pytest.raises(error, match=words):
        await run(asked, code, max_calls=3)


@pytest.mark.parametrize(("most", "calls"), [(3, 1), (4, 2)])
async def test_after_so_many_tokens_the_model_answers_no_more(
    asked: Asked, most: int, calls: int
) -> None:
    """An answer, here of three tokens, may go beyond the limit; the next call is refused."""
    code = (
        ASKING + "import urllib.error\ntry:\n    for _ in range(9): ask('go on')\n"
        "except urllib.error.HTTPError as error: sys.exit(error.read().decode())"
    )
    asked.will_say(*["ok"] * 9)
    with pytest.raises(AgentFailed, match=f"tokens, and {most} are all"):
        await run(asked, code, max_tokens=most)
    assert len(asked.model.history) == calls


@pytest.mark.parametrize("ends", [True, False])
async def test_what_an_agent_has_started_ends_with_its_run(
    asked: Asked, tmp_path: Path, ends: bool
) -> None:
    """Also what has left its group, as servers do that agents keep their tools in.

    Whatever holds its output does not keep it from its end.
    """
    pids = tmp_path / "pids"
    forks = (
        "import os, subprocess, sys, time\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "children = [subprocess.Popen(sleep, start_new_session=b).pid for b in (False, True)]\n"
        f"open({str(pids)!r}, 'w').write(' '.join(map(str, [os.getpid(), *children])))\n"
        + ("" if ends else "time.sleep(600)")
    )
    asked.will_say("ok")
    going_on = asyncio.create_task(run(asked, f"{ASKING}\nask('a')\n{forks}"))
    while not pids.exists() or len(pids.read_text().split()) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    if not ends:
        going_on.cancel()
    await asyncio.wait([going_on])
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


@needs_sandbox
async def test_in_a_sandbox_an_agent_asks_and_is_judged_as_elsewhere(asked: Asked) -> None:
    asked.will_say("I think it is 3.", "It is 2.")
    judge = (
        "import json; print(float(json.load(open('row.json'))['answer'] in open('said').read()))"
    )
    options: dict[str, Any] = {"reward_command": ["python3", "-c", judge], "sandbox": True}
    samples = await run(asked, TWO_TURNS, reward=False, **options)
    assert samples[0].reward == 1.0 and samples[0].metrics["agent_calls"] == 2


LOOKS = """
import socket
def found(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
ask(f"{os.path.exists(SECRET)} {found(PORT)}")
"""


@needs_sandbox
async def test_in_a_sandbox_an_agent_sees_no_other_file_or_address(
    asked: Asked, tmp_path: Path
) -> None:
    """The control is the same agent without one."""
    (tmp_path / "secret").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as other:
        told = LOOKS.replace("SECRET", repr(str(tmp_path / "secret")))
        told = ASKING + told.replace("PORT", str(other.getsockname()[1]))
        for sandbox, seen in ((True, "False False"), (False, "True True")):
            asked.will_say("ok")
            await run(asked, told, sandbox=sandbox)
            assert asked.chats.messages[0]["content"] == seen


@needs_sandbox
async def test_in_a_sandbox_an_agent_that_goes_wrong_says_why(asked: Asked) -> None:
    with pytest.raises(AgentFailed, match="ended with 1; it said last: no luck"):
        await run(asked, "import sys; sys.exit('no luck')", sandbox=True)


@needs_sandbox
async def test_a_file_that_a_word_names_is_in_the_sandbox(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(ASKING + "ask('from a file')")
    monkeypatch.chdir(tmp_path)
    asked.will_say("ok")
    task = task_of(
        {"question": "1+1?", "answer": "2"},
        reward=BoundReward(right, {}, "right"),
        workflow_args={"command": "python3 mine.py", "sandbox": {"max_processes": 32}},
    )
    await AgentWorkflow(task=task, model=asked.model).run_async()
    assert asked.chats.messages[0]["content"] == "from a file"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"command": None}, "command is missing"),
        ({"command": "a 'b"}, "No closing quotation"),
        ({"command": [1]}, "give a text or a list of words"),
        ({"command": "no-such-program"}, "no program `no-such-program`"),
        ({"environment": {"A": 1}}, "give names with texts"),
        ({"max_calls": 0}, "a whole number from 1 on"),
        ({"max_tokens": 0}, "a whole number from 1 on"),
        ({"rubric_judge": 1}, "give true or false"),
        ({"comand": "a"}, "comand"),
        (
            {"sandbox": {"memory": 1}},
            "sandbox is .*give true, or some of root, image, memory_bytes",
        ),
        ({"sandbox": {"disk_bytes": 0}}, "sandbox is .*give true"),
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


@needs_sandbox
async def test_where_tenants_meet_a_sandbox_is_enough_and_shows_plug_ins_alone(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The control is the operator's word, with which the other file is shown, too."""
    plugins, other = tmp_path / "plugins", tmp_path / "other"
    for folder in (plugins, other):
        folder.mkdir()
        (folder / "mine.py").write_text(TWO_TURNS)
    monkeypatch.chdir(other)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(plugins))

    async def play(word: str) -> list[Experience]:
        asked.will_say("2", "2")
        command: JsonValue = ["python3", word, "{prompt}"]
        task = task_of(
            {"question": "1+1?", "answer": "2"},
            reward=BoundReward(right, {}, "right"),
            workflow_args={"command": command, "sandbox": True},
        )
        made: list[Experience] = await AgentWorkflow(task=task, model=asked.model).run_async()
        return made

    assert await play(str(plugins / "mine.py"))
    for word in ("mine.py", f"{plugins}/../other/mine.py"):
        with pytest.raises(AgentFailed, match="No such file"):
            await play(word)
    for given in ({"root": "/"}, {"image": "a"}, {"memory_bytes": 2**50}):
        with pytest.raises(UserError, match="takes no root, no image and no higher limits"):
            await run(asked, TWO_TURNS, sandbox=given)
    monkeypatch.setenv(AGENTS_VARIABLE, "true")
    assert await play("mine.py")
