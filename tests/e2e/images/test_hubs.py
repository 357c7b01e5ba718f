"""The examples of hubs with the hubs' own packages. `make check-hubs` installs them."""

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.buffer.tasksets.row_sources import RowSource
from services.buffer.tasksets.task_pipeline import read_rows
from tests.integration.explorer.dialects.asking import Asked
from tests.integration.explorer.dialects.conftest import asked  # noqa: F401
from tests.unit.workflows.scripted import task_of
from trinity.errors import UserError
from trinity.types import Experience, JsonObject
from trinity.user_code.hubs.place import HUBS_VARIABLE, HubPlace, hub_python
from trinity.user_code.hubs.process import HubFailed, HubProcess, close_hubs
from trinity.workflows.openenv_workflow import OpenEnvWorkflow
from trinity.workflows.verifiers_workflow import VerifiersWorkflow

pytestmark = pytest.mark.timeout(1800)
EXAMPLES = Path("examples").absolute()
FOLDER = os.environ.get("TRINITY_TEST_HUBS", "")


@pytest.fixture(autouse=True)
async def hubs(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    assert FOLDER, "run `make check-hubs`"
    monkeypatch.setenv(HUBS_VARIABLE, FOLDER)
    yield
    await close_hubs()


@pytest.fixture
def sums(tmp_path: Path) -> HubPlace:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "2+3=", "answer": "5"}\n{"question": "2+4=", "answer": "6"}\n')
    return sums_with(rows, {})


def sums_with(rows: Path, env: JsonObject) -> HubPlace:
    env = {"taskset": {"file": str(rows)}, **env}
    return HubPlace("verifiers", str(EXAMPLES / "verifiers" / "sums.py"), {"env": env})


async def rows_of(place: HubPlace) -> bytes:
    python = str(hub_python(place.hub))
    source = RowSource(kind="environment", place=str(place), python=python, roots=())
    return b"".join([lines async for lines in read_rows("sums", source, [])])


async def play_sum(asked: Asked, place: HubPlace) -> list[Experience]:  # noqa: F811
    task = task_of({"idx": 0, "prompt": "2+3=", "answer": "5"})
    task.source = str(place)
    made: list[Experience] = await VerifiersWorkflow(task=task, model=asked.model).run_async()
    return made


async def test_an_environment_of_verifiers_is_read_and_played(
    asked: Asked,  # noqa: F811
    sums: HubPlace,
) -> None:
    assert (await rows_of(sums)).splitlines() == [
        b'{"idx": 0, "prompt": "2+3=", "answer": "5"}',
        b'{"idx": 1, "prompt": "2+4=", "answer": "6"}',
    ]
    asked.will_say("5", "77")
    (right,) = await play_sum(asked, sums)
    assert right.reward_parts == {"correct": 1.0} and right.metrics["digits"] == 1
    _, wrong = await play_sum(asked, sums)  # the turns of one attempt: the first run's are there
    assert wrong.reward_parts == {"correct": 0.0} and wrong.metrics["digits"] == 2
    assert [m["content"] for m in asked.chats.messages] == ["2+3="]


async def test_a_harness_of_verifiers_that_asks_elsewhere_or_fails_says_so(
    asked: Asked,  # noqa: F811
    sums: HubPlace,
    tmp_path: Path,
) -> None:
    text = (EXAMPLES / "verifiers" / "sums.py").read_text()
    begin = text.index("        async with httpx")
    end = text.index("\n\n\n__all__")
    for name, body, error, words in (
        ("silent", 'return ProgramResult(0, "", "")', UserError, "asked the model nothing"),
        ("failing", 'return ProgramResult(3, "", "no luck")', HubFailed, "exited 3: no luck"),
    ):
        file = tmp_path / f"{name}.py"
        file.write_text(f"{text[:begin]}        {body}{text[end:]}")
        with pytest.raises(error, match=words):
            await play_sum(asked, HubPlace("verifiers", str(file), sums.arguments))


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"nonsense": 1}, "verifiers cannot load .*nonsense"),
        ({"agent": {"retries": {"max_retries": 1}}}, "answers of both attempts"),
        ({"id": "user_sim"}, "several agents"),
    ],
)
async def test_what_is_not_trained_is_refused(tmp_path: Path, env: JsonObject, words: str) -> None:
    with pytest.raises(UserError, match=words):
        await HubProcess.start(sums_with(tmp_path, env))


async def test_what_episodes_of_verifiers_need_is_said(tmp_path: Path) -> None:
    said = {}
    agents: dict[str, JsonObject] = {
        "own": {},
        "null": {"harness": {"id": "null"}},
        "prime": {"runtime": {"type": "prime"}},
        "docker": {"runtime": {"type": "docker"}},
        "bash": {"harness": {"id": "bash"}},
    }
    for name, agent in agents.items():
        hub = await HubProcess.start(sums_with(tmp_path, {"agent": agent}))
        said[name] = " ".join(await hub.call("notes"))
        await hub.kill()
    assert said["own"] == ""
    assert "`null` fetches its program" in said["null"]
    assert "prime: that needs the network and a login" in said["prime"]
    assert "docker, which pulls" in said["docker"]
    assert "run on this machine" in said["bash"]


async def test_an_environment_of_openenv_is_read_and_played(asked: Asked) -> None:  # noqa: F811
    place = HubPlace("openenv", str(EXAMPLES / "openenv" / "sums.py"), {"num_tasks": 2})
    held_out = replace(place, arguments={"num_tasks": 1, "first_seed": 2})
    assert (await rows_of(place)).splitlines() == [b'{"seed": 0}', b'{"seed": 1}']
    assert (await rows_of(held_out)).splitlines() == [b'{"seed": 2}']
    task = task_of({"seed": 0})
    task.source = str(place)
    task.format_args.system_prompt = ""
    asked.will_say("7", "102")
    samples = await OpenEnvWorkflow(task=task, model=asked.model).run_async()
    question, _, told = (str(m["content"]) for m in asked.chats.messages)
    assert told == "no" and question.endswith("=")
    is_right = sum(map(int, question[:-1].split("+"))) == 102
    assert {sample.reward for sample in samples} == {0.5 * is_right}
    asked.will_say(str(sum(map(int, question[:-1].split("+")))))
    (sample,) = await OpenEnvWorkflow(task=task, model=asked.model).run_async()
    assert sample.reward == 1.0 and sample.metrics["env_steps"] == 1


@pytest.mark.parametrize(
    ("path", "arguments", "words"),
    [
        ("owner/name", {"num_tasks": 1}, "is no file or folder here: clone it"),
        (str(EXAMPLES / "openenv"), {"num_tasks": 1}, "has no openenv.yaml"),
        (str(EXAMPLES / "openenv" / "sums.py"), {}, "has no task set"),
        (
            str(EXAMPLES / "openenv" / "sums.py"),
            {"num_tasks": 1, "first_seed": "a"},
            "no whole number from 0 on",
        ),
        ("http://127.0.0.1:9", {"num_tasks": 1}, "does not give its schema"),
        (str(EXAMPLES / "verifiers" / "sums.py"), {"num_tasks": 1}, "OpenEnv cannot load"),
    ],
)
async def test_what_openenv_cannot_load_is_named(
    path: str, arguments: JsonObject, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        await HubProcess.start(HubPlace("openenv", path, arguments))
