"""Workflows that were written for Trinity-RFT run as they are."""

import logging
import math
from pathlib import Path
from typing import Any, ClassVar

import pytest

from services.explorer.openai_api.server import AttemptApiServer
from services.explorer.types import AttemptResult, attempt_result_to_proto
from tests.unit.explorer.builders import CharacterTokenizer
from tests.unit.explorer.hosting import made_by, runner_of
from trinity.config.schema.explorer import RolloutModelConfig
from trinity.rft.common.experience import Experience
from trinity.rft.common.models.model import ModelWrapper
from trinity.rft.common.workflows import WORKFLOWS, Task, Workflow
from trinity.rft.common.workflows.step_wise_workflow import (
    AsyncRewardPropagationWorkflow,
    StepWiseRewardWorkflow,
)
from trinity.rft.common.workflows.workflow import (
    AsyncSimpleWorkflow,
    MultiTurnWorkflow,
    SimpleWorkflow,
)
from trinity.types import VersionSpan
from trinity.workflows.samples import BUILT


class Overridden(SimpleWorkflow):
    """A reward of its own in `run`, which the base defines too."""

    def run(self) -> list[Experience]:
        answers = self.model.chat(self.format_messages(), **self.rollout_args)
        for i, answer in enumerate(answers):
            answer.reward = 10.0 + i
            answer.eid.run = i + self.run_id_base
        return answers


class OverriddenAsync(AsyncSimpleWorkflow):
    """The same on a loop of its own, with a call that blocks."""

    async def run_async(self) -> list[Experience]:
        answers = self.model.chat(self.format_messages())
        answers += await self.model.chat_async(self.format_messages())
        for answer in answers:
            answer.reward = 20.0
        return answers


class Guided(Workflow):
    """Builds its experiences itself, as the guide's examples do, and names no run."""

    can_reset = True
    can_repeat = True
    made: ClassVar[list[int]] = []

    def __init__(self, task: Task, model: ModelWrapper, auxiliary_models: list[Any]) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.made.append(id(self))
        self.reset(task)

    def reset(self, task: Task) -> None:
        self.question = task.raw_task.get("question")
        self.rollout_args = task.rollout_args

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        self.repeat_times, self.run_id_base = repeat_times, run_id_base

    def run(self) -> list[Experience]:
        answers = self.model.chat(
            [{"role": "user", "content": f"Question:\n{self.question}"}],
            n=self.repeat_times,
            temperature=self.rollout_args.temperature,
        )
        return [
            Experience(
                tokens=answer.tokens,
                prompt_length=answer.prompt_length,
                reward=float(number),
                logprobs=answer.logprobs,
            )
            for number, answer in enumerate(answers)
        ]


class Builds(Workflow):
    """Returns tokens that no engine made, without log-probabilities."""

    def run(self) -> list[Experience]:
        made = Experience(tokens=[97, 98, 99, 100], prompt_length=2, reward=1)
        made.info = {"tries": 3, "who": object}  # type: ignore[dict-item]
        return [made]


class Talks(MultiTurnWorkflow):
    """Two turns that become one experience."""

    def run(self) -> list[Experience]:
        messages = [{"role": "user", "content": self.task.task_desc}]
        for _ in range(2):
            answer = self.model.chat(messages)[0]
            messages.append({"role": "assistant", "content": answer.response_text})
            messages.append({"role": "user", "content": "again"})
        return [self.process_messages_to_experience(messages, 0.5, {"rounds": 2})]


class Careless(Workflow):
    """Answers as an argument says, each wrong in its own way."""

    def run(self) -> list[Any]:
        (answer,) = self.model.chat([{"role": "user", "content": "a"}])
        wrong = self.task.workflow_args["wrong"]
        if wrong == "call":
            self.model.chat([{"role": "user", "content": "a"}], best_of=3)
        if wrong == "advantages":
            answer.advantages = [1.0]
        if wrong == "kind":
            return ["text"]
        values: dict[str, Any] = {"reward": None, "text": "1.0", "nan": math.nan}
        answer.reward = values.get(wrong, 1.0)
        return [answer] * (2 if wrong == "twice" else 1)


class Splits(Overridden):
    """Says run numbers that there are not."""

    def run(self) -> list[Experience]:
        answers = super().run()
        answers[0].eid.run = 7
        return answers


class Walks(StepWiseRewardWorkflow):
    """Two steps, each with a reward of its own."""

    max_step_num = 2

    def __init__(self, *, task: Task, model: ModelWrapper, auxiliary_models: Any = None) -> None:
        super().__init__(
            task=task, model=model, auxiliary_models=auxiliary_models, use_openai_client=False
        )

    def step(self, step_num: int) -> bool:
        self.model.chat([{"role": "user", "content": f"step {step_num}"}])
        return True

    def reward(self, exps: list[Experience], step_num: int) -> float:
        assert len(exps) == 1
        return float(step_num)


class Agent(AsyncRewardPropagationWorkflow):
    """Asks over HTTP and blocks in a coroutine, as many agents do."""

    max_step_num = 2

    async def step_async(self, step_num: int) -> bool:
        self.client.chat.completions.create(
            model=self.client.model_path, messages=[{"role": "user", "content": "a"}]
        )
        return True

    async def reward_async(self, exps: list[Experience]) -> float:
        return float(len(exps))


class Unfinished(Workflow):
    """Has a constructor that leaves out that of its base."""

    def __init__(self, *, task: Task, model: ModelWrapper, auxiliary_models: Any = None) -> None:
        self.query = task.raw_task["question"]

    def run(self) -> list[Experience]:
        answers = self.model.chat([{"role": "user", "content": self.query}])
        for answer in answers:
            answer.reward = 1.0
        return answers


class Fails(Workflow):
    """Always fails at the same place."""

    def run(self) -> list[Experience]:
        raise RuntimeError(f"no luck with {self.task.raw_task['question']}")


KINDS = (
    *(Overridden, OverriddenAsync, Guided, Builds, Talks, Careless, Splits, Fails),
    *(Walks, Agent, Unfinished),
)


@pytest.fixture(autouse=True, scope="module")
def registered() -> None:
    for kind in KINDS:
        WORKFLOWS.register(f"test_rft_{kind.__name__}", kind)


def rewards(results: list[AttemptResult]) -> list[list[float | None]]:
    assert [result.failure for result in results] == [""] * len(results)
    for result in results:
        attempt_result_to_proto(result)
    return [[own.reward for own in result.experiences] for result in results]


async def test_an_overridden_run_is_called_once_for_all_runs(tmp_path: Path) -> None:
    runner = runner_of(tmp_path, "test_rft_Overridden")
    results = await made_by(runner, 0, 1, 2)
    assert rewards(results) == [[10.0], [11.0], [12.0]]
    assert [own.eid.run for result in results for own in result.experiences if own.eid] == [0, 1, 2]
    texts = {own.response_text for result in results for own in result.experiences}
    assert len(texts) == 3, "each run has a seed of its own"


async def test_the_runs_that_are_left_keep_their_numbers(tmp_path: Path) -> None:
    results = await made_by(runner_of(tmp_path, "test_rft_Overridden"), 2, 5)
    assert [result.attempt.run for result in results] == [2, 5]
    assert rewards(results) == [[10.0], [11.0]]


async def test_an_asynchronous_workflow_may_block(tmp_path: Path) -> None:
    results = await made_by(runner_of(tmp_path, "test_rft_OverriddenAsync"), 0, 1)
    assert rewards(results) == [[20.0, 20.0], [20.0, 20.0]]


async def test_an_answer_that_is_built_again_is_the_engines(tmp_path: Path) -> None:
    results = await made_by(runner_of(tmp_path, "test_rft_Guided"), 0, 1)
    assert rewards(results) == [[0.0], [1.0]]
    (first,) = results[0].experiences
    assert first.version_spans == (VersionSpan(start=0, end=3, version=4, incarnation=2),)
    assert first.sampling is not None and first.chat_template_sha256 and first.response_text
    assert first.metrics[BUILT] == 0.0 and BUILT not in first.info


async def test_an_instance_is_reset_for_the_next_task(tmp_path: Path) -> None:
    Guided.made.clear()
    runner = runner_of(tmp_path, "test_rft_Guided")
    await made_by(runner, 0, 1)
    results = await made_by(runner, 0, 1, task_json='{"question": "5+5=", "answer": "10"}')
    assert len(Guided.made) == 1
    assert results[0].experiences[0].prompt_text == "user:Question:\n5+5=\n"


async def test_an_experience_that_is_built_is_marked_with_the_runs_version(
    tmp_path: Path,
) -> None:
    results = await made_by(runner_of(tmp_path, "test_rft_Builds"), 0)
    assert rewards(results) == [[1.0]]
    (made,) = results[0].experiences
    assert made.version_spans == (VersionSpan(start=0, end=2, version=4, incarnation=2),)
    assert made.sequence.rollout_logprobs == pytest.approx([-0.99, -1.0])
    assert (made.prompt_text, made.response_text) == ("ab", "cd")
    assert made.info[BUILT] is True and made.metrics[BUILT] == 1.0
    assert made.info["who"] == str(object)


async def test_a_transcript_has_the_engines_tokens(tmp_path: Path) -> None:
    (result,) = await made_by(runner_of(tmp_path, "test_rft_Talks"), 0)
    assert rewards([result])[0] == [0.5] * len(result.experiences)
    assert all(own.metrics[BUILT] == 0.0 for own in result.experiences)
    assert sum(own.sequence.action_mask.sum() for own in result.experiences) == 6


async def test_steps_have_rewards_of_their_own(tmp_path: Path) -> None:
    (result,) = await made_by(runner_of(tmp_path, "test_rft_Walks"), 0)
    assert rewards([result]) == [[0.0, 1.0]]
    assert [own.eid.step for own in result.experiences if own.eid] == [0, 1]
    assert [own.info["step_reward"] for own in result.experiences] == [0.0, 1.0]


async def test_a_client_that_blocks_in_a_coroutine_gets_its_answers(tmp_path: Path) -> None:
    api = AttemptApiServer(
        model_path="m", rollout=RolloutModelConfig(), tokenizer=CharacterTokenizer()
    )
    await api.start_api()
    (result,) = await made_by(runner_of(tmp_path, "test_rft_Agent", api=api), 0)
    await api.stop_api()
    assert rewards([result]) == [[2.0, 2.0]]
    assert [own.metrics["actual_env_steps"] for own in result.experiences] == [2.0, 2.0]


async def test_a_constructor_may_leave_its_base_out(tmp_path: Path) -> None:
    assert rewards(await made_by(runner_of(tmp_path, "test_rft_Unfinished"), 0)) == [[1.0]]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("call", "`best_of`, which it does not take"),
        ("advantages", "an experience has `advantages`, which is not read"),
        ("kind", "returned str, not an Experience"),
        ("twice", "one experience as number 1 and number 2"),
        ("reward", "without a reward: set `experience.reward`"),
        ("text", "Careless gave the reward '1.0', which is no number"),
        ("nan", "Careless returned nan as 'reward'"),
    ],
)
async def test_what_nothing_would_use_is_refused(wrong: str, told: str, tmp_path: Path) -> None:
    runner = runner_of(tmp_path, "test_rft_Careless", workflow_args={"wrong": wrong})
    (result,) = await made_by(runner, 0)
    assert told in result.failure


async def test_control_the_careless_workflow_is_otherwise_fine(tmp_path: Path) -> None:
    runner = runner_of(tmp_path, "test_rft_Careless", workflow_args={"wrong": "nothing"})
    assert rewards(await made_by(runner, 0)) == [[1.0]]


async def test_runs_that_are_not_there_are_told(tmp_path: Path) -> None:
    results = await made_by(runner_of(tmp_path, "test_rft_Splits"), 0, 1)
    assert all("set it to `run_id_base`" in result.failure for result in results)


async def test_a_failure_is_told_once_with_its_traceback_and_then_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runner = runner_of(tmp_path, "test_rft_Fails")
    with caplog.at_level(logging.WARNING):
        for number in range(20):
            row = f'{{"question": "{number}", "answer": "2"}}'
            (result,) = await made_by(runner, 0, task_json=row)
            assert "no luck" in result.failure
    told = [record for record in caplog.records if record.exc_info]
    assert len(told) == 1 and "no luck with 0" in str(told[0].exc_info)
    others = [record for record in caplog.records if not record.exc_info]
    assert len(others) == 1, "the rest is counted and told after ten seconds"
