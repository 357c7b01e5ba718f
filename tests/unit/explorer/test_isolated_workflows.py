"""Users' synchronous workflows run in processes, and what they make is what a thread makes."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from services.explorer.types import AttemptResult
from tests.unit.explorer.builders import ArithmeticEngine
from tests.unit.explorer.runs import outcome_of
from tests.unit.explorer.users import plugin_folder, user_processes
from trinity.types import Experience
from trinity.workflows.samples import BUILT

FILE = '''
import asyncio, os, re, threading, time
from concurrent.futures import ThreadPoolExecutor
from trinity.errors import UserError
from trinity.workflows.workflow import Workflow
from trinity.workflows.simple_workflow import SimpleWorkflow
from trinity.workflows.multi_turn import MultiTurnWorkflow
from trinity.workflows.step_wise import StepWiseRewardWorkflow

ASKED = [{"role": "user", "content": "1+1="}]
STATE = []

class Forms(Workflow):
    """Every form of a call, in its order."""
    keeps_history = True
    def run(self):
        model = self.model
        first = model.chat(ASKED, n=2, temperature=0.5)
        second = model.generate(["ab", [97, 98]], max_tokens=2, logprobs=2)
        scores = model.logprobs([97, 98, 99])
        third = model.wait_in_thread(model.chat_async(ASKED, tools=[{"name": "add"}]))
        fourth = asyncio.run(self.twice())
        for place, made in enumerate([*first, *second, *third, *fourth]):
            made.reward = float(place)
        recorded = model.extract_experience_from_history()
        assert [made.reward for made in recorded] == list(map(float, range(len(recorded))))
        assert model.extract_experience_from_history() == []
        recorded[0].info = {"scores": [float(x) for x in scores], "name": model.name}
        recorded[0].metrics = {
            "version": float(model.model_version),
            "length": float(model.get_message_token_len(ASKED)),
            "text": float(model.text_of([97, 98]) == "ab"),
            "room": float(model.limits.max_model_len),
            "temperature": model.sampling.temperature,
        }
        recorded[0].sequence.action_mask[:1] = False
        return recorded
    async def twice(self):
        heard = []
        made = await self.model.await_elsewhere(
            self.model.chat_async(ASKED, on_delta=lambda index, part: heard.extend(part.token_ids))
        )
        body = made[0].sequence
        assert heard == body.tokens[body.prompt_length:].tolist()
        return made + await self.model.generate_async(["c"])

class Errors(Workflow):
    """An error of a call has its class."""
    def run(self):
        try:
            self.model.logprobs([1, 2], temperature=0.5)
        except UserError as error:
            [made] = self.model.chat(ASKED)
            made.reward, made.info = 1.0, {"error": str(error)}
            return [made]

class GivesUp(Workflow):
    """Calls that are given up while they are open take no later one with them."""
    def run(self):
        return asyncio.run(self.gives_up())
    async def gives_up(self):
        for _ in range(20):
            asked = self.model.await_elsewhere(self.model.chat_async(ASKED))
            waiting = asyncio.create_task(asked)
            await asyncio.sleep(0.001)
            waiting.cancel()
            await asyncio.wait([waiting])
        [made] = await self.model.await_elsewhere(self.model.chat_async(ASKED))
        made.reward = 1.0
        return [made]

class Scored(Workflow):
    """Calls the taskset's reward itself."""
    def run(self):
        [made] = self.model.chat(ASKED)
        made.metrics = self.task.reward(response=made.response_text, truth=self.task.truth)
        made.reward = sum(made.metrics.values())
        return [made]

class Moody(SimpleWorkflow):
    @property
    def is_async(self):
        return self.task.row % 2 == 0
    async def run_async(self):
        [made] = await self.model.chat_async(self.messages())
        made.reward = 3.0
        return [made]

class Turns(MultiTurnWorkflow):
    def run(self):
        messages = list(ASKED)
        for _ in range(2):
            (turn,) = self.model.chat(messages)
            messages.append({"role": "assistant", "content": turn.response_text})
            messages.append({"role": "user", "content": "and?"})
        return self.experiences(messages, 0.5, info={"turns": 2})

class ToolTurns(MultiTurnWorkflow):
    """The turns' prompts are found with the tools of their calls alone."""
    def run(self):
        messages = list(ASKED)
        for tools in ([{"name": "add"}], [{"name": "subtract"}]):
            (turn,) = self.model.wait_in_thread(self.model.chat_async(messages, tools=tools))
            messages.append({"role": "assistant", "content": turn.response_text})
            messages.append({"role": "user", "content": "and?"})
        return self.experiences(messages, 0.5)

class Steps(StepWiseRewardWorkflow):
    max_step_num = 2
    def step(self, step_num):
        self.model.chat([{"role": "user", "content": f"step {step_num}"}])
        return True
    def reward(self, exps, step_num):
        return float(step_num)

class Endless(Workflow):
    def run(self):
        self.model.chat(ASKED)
        while True:
            pass

class Pattern(Workflow):
    def run(self):
        return re.match(r"(\\d+\\s*)+x$", "1" * 40)

class Leaves(Workflow):
    def run(self):
        os._exit(4)

class Raises(Workflow):
    def run(self):
        raise ZeroDivisionError("no answer")

class Exits(Workflow):
    def run(self):
        raise SystemExit("enough")

class Empty(Workflow):
    def run(self):
        return []

class Wrong(Workflow):
    def run(self):
        return ["text"]

class Twice(Workflow):
    def run(self):
        (made,) = self.model.wait_in_thread(self.model.chat_async(ASKED))
        made.reward = 1.0
        return [made, made]

class Counts(Workflow):
    def run(self):
        STATE.append(1)
        [made] = self.model.chat(ASKED)
        made.reward, made.metrics = float(len(STATE)), {"pid": float(os.getpid())}
        return [made]
'''
RFT = """
from trinity.common.workflows.workflow import SimpleWorkflow, Workflow, AsyncSimpleWorkflow
from trinity.common.experience import Experience

class Plain(SimpleWorkflow):
    def run(self):
        answers = self.model.chat(self.format_messages(), **self.rollout_args)
        for i, answer in enumerate(answers):
            answer.reward = float(len(answer.response_text))
            answer.eid.run = i + self.run_id_base
        return answers

class Alone(AsyncSimpleWorkflow):
    async def run_async(self):
        answers = await self.model.chat_async(self.format_messages(), n=1)
        answers[0].reward = 2.0
        return answers

class Refused(SimpleWorkflow):
    pass

class Built(Workflow):
    def run(self):
        [answer] = self.model.chat([{"role": "user", "content": "a"}])
        tokens = [*answer.tokens.tolist(), 97]
        made = Experience(tokens=tokens, prompt_length=answer.prompt_length, reward=1.0)
        said = {"role": "assistant", "content": answer.response_text}
        transcript = self.model.convert_messages_to_experience(
            [{"role": "user", "content": "a"}, said]
        )
        transcript.reward = 4.0
        return [made, transcript]
"""


@pytest.fixture(scope="module", autouse=True)
def _workflows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("plugins")
    with plugin_folder(folder, isolated_flows=FILE, isolated_rft=RFT):
        yield


async def ran(
    folder: Path, workflow: str, *, isolated: bool = True, seconds: float = 60.0
) -> AttemptResult:
    """An attempt by this workflow of the file."""
    async with user_processes() as pool:
        return await outcome_of(
            folder,
            timeout_seconds=seconds,
            processes=pool if isolated else None,
            default_workflow_type=workflow,
            default_reward_fn_type="exact_match_reward",
        )


def plain(experience: Experience) -> dict[str, object]:
    """All fields, to be compared; a trace is of its attempt."""
    values = {name: getattr(experience, name) for name in Experience.__dataclass_fields__}
    body = experience.sequence
    values["body"] = {
        name: array.tolist() if isinstance(array := getattr(body, name), np.ndarray) else array
        for name in body.__dataclass_fields__
    }
    values["arrays"] = {name: a.data.tolist() for name, a in experience.arrays.items()}
    return values


SAME = [
    *(f"isolated_flows.{n}" for n in ("Forms", "Errors", "Scored", "Moody", "Turns")),
    *(f"isolated_flows.{n}" for n in ("ToolTurns", "Steps")),
    *(f"isolated_rft.{n}" for n in ("Plain", "Alone", "Built")),
]


@pytest.mark.parametrize("workflow", SAME)
async def test_a_process_makes_what_a_thread_makes(tmp_path: Path, workflow: str) -> None:
    inside, outside = [await ran(tmp_path, workflow, isolated=i) for i in (False, True)]
    assert (inside.failure, outside.failure) == ("", "")
    assert list(map(plain, outside.experiences)) == list(map(plain, inside.experiences))
    assert outside.experiences
    is_built = any(own.info.get(BUILT) for own in outside.experiences)
    assert is_built is (workflow == "isolated_rft.Built")


async def test_a_workflow_may_give_calls_up(tmp_path: Path) -> None:
    outcome = await ran(tmp_path, "isolated_flows.GivesUp")
    assert (outcome.failure, len(outcome.experiences)) == ("", 1)


async def longer(response: str, truth: str) -> float:
    await asyncio.sleep(0)
    return float(len(response) + len(truth))


def nothing(response: str) -> None:
    """Forgets its answer."""


async def test_rewards_are_awaited_in_workflows_of_trinity_rft(tmp_path: Path) -> None:
    found = {}
    for reward in (longer, nothing):
        async with user_processes() as pool:
            found[reward.__name__] = await outcome_of(
                tmp_path,
                processes=pool,
                default_workflow_type="isolated_rft.Refused",
                default_reward_fn_type=f"{__name__}.{reward.__name__}",
            )
    [experience] = found["longer"].experiences
    assert experience.reward == 4.0
    assert "returned nothing, neither a dict of named numbers" in found["nothing"].failure


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Leaves", "ended (with exit code 4)"),
        ("Raises", "ZeroDivisionError: no answer"),
        ("Exits", "SystemExit: enough"),
        ("Empty", "Empty returned no list of experiences"),
        ("Wrong", "Wrong returned str, not an Experience"),
        ("Twice", "Twice returned one experience as number 1 and number 2"),
    ],
)
async def test_a_failure_in_a_process_says_what_and_where(
    tmp_path: Path, name: str, sentence: str
) -> None:
    outcome = await ran(tmp_path, f"isolated_flows.{name}")
    assert sentence in outcome.failure
    if name in ("Raises", "Exits"):
        assert "isolated_flows.py, line" in outcome.failure


@pytest.mark.parametrize("name", ["Endless", "Pattern"])
async def test_a_workflow_that_hangs_is_killed_alone(tmp_path: Path, name: str) -> None:
    engine = ArithmeticEngine()
    async with user_processes() as pool:

        async def run(workflow: str, seconds: float) -> AttemptResult:
            return await outcome_of(
                tmp_path,
                engine,
                timeout_seconds=seconds,
                processes=pool,
                default_workflow_type=f"isolated_flows.{workflow}",
            )

        await run("Counts", 60.0)
        hanging = asyncio.create_task(run(name, 2.0))
        num_others = 0
        while not hanging.done():
            assert (await run("Counts", 60.0)).is_complete
            num_others += 1
        outcome = await hanging
    assert num_others > 0
    assert f"(`explorer.max_timeout`): {name} ran (" in outcome.failure
    assert "isolated_flows.py, line" in outcome.failure
    assert outcome.duration_seconds < 4.0 + START_ALLOWANCE
    assert not engine.num_active


START_ALLOWANCE = 30.0
"""Before its time begins, an attempt waits for a process to start."""


async def test_a_process_serves_run_after_run(tmp_path: Path) -> None:
    begun = time.monotonic()
    async with user_processes() as pool:
        outcomes = [
            await outcome_of(
                tmp_path, processes=pool, default_workflow_type="isolated_flows.Counts"
            )
            for _ in range(3)
        ]
        assert pool.num_processes == 1
    found = [experience for outcome in outcomes for experience in outcome.experiences]
    assert [each.reward for each in found] == [1.0, 2.0, 3.0], time.monotonic() - begun
    assert len({each.metrics["pid"] for each in found}) == 1
