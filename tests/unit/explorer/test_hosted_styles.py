"""Workflows for Trinity-RFT in the ways in which its guide, and users, write them."""

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from services.explorer.openai_api.server import AttemptApiServer
from services.explorer.types import AttemptResult
from tests.unit.explorer.builders import CharacterTokenizer
from tests.unit.explorer.hosting import made_by, runner_of
from trinity.config.schema.explorer import RolloutModelConfig
from trinity.errors import UserError
from trinity.rft.checks.workflow import check_workflow, has_no_reward
from trinity.rft.common.experience import Experience
from trinity.rft.common.models.model import ModelWrapper
from trinity.rft.common.workflows import WORKFLOWS, Task, Workflow
from trinity.rft.common.workflows.workflow import MathWorkflow, SimpleWorkflow
from trinity.rft.utils.registry import Registry

registry: Registry[object] = Registry("workflows", default_mapping={"whole": f"{__name__}.Whole"})
"""As the guide has workflows listed."""


class Whole(Workflow):
    """Takes the number of runs from the sampling arguments, and scores by a method of its own."""

    can_reset: bool = True
    can_repeat: bool = True

    def __init__(self, task: Task, model: ModelWrapper, auxiliary_models: list[Any]) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.question = task.raw_task.get("question")
        self.answer = task.raw_task.get("answer")
        self.rollout_args = task.rollout_args

    def calculate_reward(self, response: str, truth: str) -> float:
        return float(len(response) > len(truth))

    def run(self) -> list[Experience]:
        self.logger.info(f"asks {self.question}")
        answers = self.model.chat(
            [{"role": "user", "content": self.question}],
            n=self.rollout_args.n,
            temperature=self.rollout_args.temperature,
        )
        return [
            Experience(
                tokens=answer.tokens,
                prompt_length=answer.prompt_length,
                reward=self.calculate_reward(str(answer.response_text), self.answer),
                logprobs=answer.logprobs,
            )
            for answer in answers
        ]

    def reset(self, task: Task) -> None:
        self.question = task.raw_task.get("question")
        self.answer = task.raw_task.get("answer")

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        self.repeat_times, self.run_id_base = repeat_times, run_id_base


class OverHttp(Workflow):
    """Gives an agent the client, and takes the samples from the history."""

    def __init__(self, task: Task, model: ModelWrapper, auxiliary_models: list[Any]) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.client: openai.OpenAI = self.model.get_openai_client()
        self.name = self.client.models.list().data[0].id
        self.agent = SimpleNamespace(run=self.ask)

    def ask(self, question: str) -> str | None:
        messages: Any = [{"role": "user", "content": question}]
        answer = self.client.chat.completions.create(model=self.name, messages=messages)
        return answer.choices[0].message.content

    def run(self) -> list[Experience]:
        answers = [self.agent.run(question) for question in ("a", "b")]
        self.client.close()
        made = self.model.extract_experience_from_history()
        for experience in made:
            experience.reward = float(len(answers))
        return made


class Awaits(Workflow):
    """The guide's agent: it says nothing of `is_async`, and leaves its base's constructor out."""

    def __init__(self, *, task: Task, model: ModelWrapper, auxiliary_models: Any = None) -> None:
        self.agent = SimpleNamespace(reply=model.chat_async)
        self.query = task.raw_task.get(task.format_args.prompt_key)

    async def run_async(self) -> list[Experience]:
        await self.agent.reply([{"role": "user", "content": self.query}])
        return self.construct_experiences(3.0)

    def construct_experiences(self, reward: float) -> list[Experience]:
        made = self.model.extract_experience_from_history()
        for experience in made:
            experience.reward = reward
        return made


class Repeated(Workflow):
    """All runs in one call, on a loop of its own."""

    is_async = True
    can_repeat = True

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        self.repeat_times, self.run_id_base = repeat_times, run_id_base

    async def run_async(self) -> list[Experience]:
        messages = [{"role": "user", "content": self.task.task_desc}]
        answers = await self.model.chat_async(messages, n=self.repeat_times)
        for number, answer in enumerate(answers):
            answer.reward = float(number)
            answer.eid.run = self.run_id_base + number
        return answers


class Asks(MathWorkflow):
    """Asks in its own words."""

    def format_messages(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": f"Say {self.task_desc} for {self.truth}"}]


class Scores(Asks):
    """A reward of its own, two classes below the base, as a method."""

    def reward_fn(self, response: str, truth: str, **known: object) -> dict[str, float]:
        return {"length": float(len(response)), "bonus": float(truth)}


class Short:
    """A reward that a workflow names itself."""

    def __init__(self, worth: float = 7.0) -> None:
        self.worth = worth

    def __call__(self, response: str, truth: str) -> float:
        return self.worth * (len(response) < 9)


class Named(SimpleWorkflow):
    """Names its reward in its body."""

    reward_fn = Short


class Long(Workflow):
    """Asks a long question over the address, and once more by a call of its own."""

    def run(self) -> list[Experience]:
        messages: Any = [{"role": "user", "content": "a" * 144}]
        client = self.model.get_openai_client()
        more = {"top_k": 20}
        client.chat.completions.create(model="m", messages=messages, extra_body=more)
        client.close()
        self.model.chat(messages)
        made = self.model.extract_experience_from_history()
        for experience in made:
            experience.reward = 1.0
        return made


KINDS = (Whole, OverHttp, Awaits, Repeated, Scores, Named, Long)


@pytest.fixture(autouse=True, scope="module")
def registered() -> Iterator[None]:
    for kind in KINDS:
        WORKFLOWS.register(f"test_style_{kind.__name__}", kind)
    yield


def rewards(results: list[AttemptResult]) -> list[list[float | None]]:
    assert [result.failure for result in results] == [""] * len(results)
    return [[own.reward for own in result.experiences] for result in results]


@pytest.mark.parametrize("kind", KINDS)
def test_each_is_taken_at_the_check(kind: type) -> None:
    check_workflow(kind, kind.__name__)


def test_a_list_of_workflows_as_the_guide_has_it_is_read() -> None:
    assert registry.get("whole") is Whole


async def test_the_guides_whole_example_makes_all_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        runner = runner_of(tmp_path, "test_style_Whole")
        assert rewards(await made_by(runner, 0, 1, 2)) == [[1.0], [1.0], [1.0]]
        again = await made_by(runner, 0, 1, 2, task_json='{"question": "?", "answer": "1234"}')
    assert rewards(again) == [[0.0], [0.0], [0.0]], "it was reset"
    assert "asks ?" in caplog.text


async def test_the_guides_client_is_recorded(tmp_path: Path) -> None:
    api = AttemptApiServer(
        model_path="m", rollout=RolloutModelConfig(), tokenizer=CharacterTokenizer()
    )
    await api.start_api()
    results = await made_by(runner_of(tmp_path, "test_style_OverHttp", api=api), 0)
    await api.stop_api()
    assert rewards(results) == [[2.0, 2.0]]


async def test_a_coroutine_alone_is_what_is_run(tmp_path: Path) -> None:
    assert Awaits.is_async and not Whole.is_async
    results = await made_by(runner_of(tmp_path, "test_style_Awaits"), 0)
    assert rewards(results) == [[3.0]]


def test_control_a_class_that_says_no_is_refused() -> None:
    refused = type("Refused", (Workflow,), {"is_async": False, "run_async": Awaits.run_async})
    with pytest.raises(UserError, match="set `is_async = True`"):
        check_workflow(refused, "refused")


async def test_a_coroutine_makes_all_runs_in_one_call(tmp_path: Path) -> None:
    results = await made_by(runner_of(tmp_path, "test_style_Repeated"), 3, 4)
    assert rewards(results) == [[0.0], [1.0]]


async def test_methods_of_a_class_below_a_class_are_what_is_called(tmp_path: Path) -> None:
    assert not has_no_reward(Scores)
    results = await made_by(runner_of(tmp_path, "test_style_Scores"), 0, 1)
    [first], [_] = [result.experiences for result in results]
    assert (first.prompt_text or "").startswith("user:Say ")
    assert first.reward == len(first.response_text or "") + first.metrics["bonus"]


async def test_a_reward_in_a_classes_body_is_made_and_called(tmp_path: Path) -> None:
    assert rewards(await made_by(runner_of(tmp_path, "test_style_Named"), 0, 1)) == [[7.0], [7.0]]


async def test_max_model_len_alone_is_not_halved_over_the_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api = AttemptApiServer(
        model_path="m", rollout=RolloutModelConfig(), tokenizer=CharacterTokenizer()
    )
    await api.start_api()
    lengths: Any = {"max_model_len": 200}
    runner = runner_of(tmp_path, "test_style_Long", api=api, lengths=lengths)
    result, _ = await made_by(runner, 0, 1)
    await api.stop_api()
    assert result.failure == ""
    asked, own = result.experiences
    assert asked.sequence.prompt_length == 150 and asked.sampling is not None
    assert asked.sampling.max_tokens == 50, "all that the prompt leaves"
    assert own.finish_reason == "prompt_truncated", "a call of its own has half, as there"
    assert len([text for text in caplog.messages if "`top_k: 20`" in text]) == 1


def test_control_without_a_reward_of_its_own_the_taskset_needs_one() -> None:
    assert has_no_reward(type("Plain", (SimpleWorkflow,), {}))
