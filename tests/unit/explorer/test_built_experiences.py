"""What a hosted workflow changed or built is marked, and what no trainer can take is told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from services.explorer.types import AttemptResult
from tests.support.said import said_of
from tests.unit.explorer.builders import ArithmeticEngine
from tests.unit.explorer.hosting import made_by, runner_of
from trinity.errors import UserError
from trinity.rft.common.experience import Experience
from trinity.rft.common.workflows import WORKFLOWS, Workflow
from trinity.types import FinishReason, VersionSpan
from trinity.workflows.generation import Scores
from trinity.workflows.samples import BUILT

Change = Callable[[Any], Any]


def tokens_set(answer: Any) -> None:
    answer.tokens = torch.cat([answer.tokens[:-1], answer.tokens[:1]])


def tokens_in_place(answer: Any) -> None:
    answer.tokens[-1] = 65


def logprobs_set(answer: Any) -> None:
    answer.logprobs = answer.logprobs * 2


def one_more_token(answer: Any) -> None:
    answer.tokens = torch.cat([answer.tokens, answer.tokens[:1]])
    answer.logprobs = torch.cat([answer.logprobs, answer.logprobs[:1]])
    answer.action_mask = torch.ones_like(answer.logprobs)


def masked(answer: Any) -> None:
    answer.action_mask = torch.tensor([True, False, True])


def masked_in_logprobs(answer: Any) -> Experience:
    mask = torch.tensor([True, False, True])
    return Experience(
        tokens=answer.tokens,
        prompt_length=answer.prompt_length,
        logprobs=answer.logprobs * mask,
        action_mask=mask,
        reward=1.0,
    )


def told_truncated(answer: Any) -> None:
    answer.truncate_status = "response_truncated"


def without_info(answer: Any) -> None:
    answer.info = answer.metrics = None


CHANGES: dict[str, Change] = {
    change.__name__: change
    for change in (
        *(tokens_set, tokens_in_place, logprobs_set, one_more_token),
        *(masked, masked_in_logprobs, told_truncated, without_info),
    )
}


class Changes(Workflow):
    """Changes its answer by the name of a change; the history keeps what the engine said."""

    def run(self) -> list[Experience]:
        (answer,) = self.model.chat([{"role": "user", "content": "a"}])
        said = [own.origin for own in self.model.answers if own.origin is not None]
        before = said[0].sequence.tokens.tolist()
        answer.reward = 1.0
        made = CHANGES[str(self.task.workflow_args["change"])](answer) or answer
        assert said[0].sequence.tokens.tolist() == before
        return [made]


class Numbered(Workflow):
    """One experience, of the second of its runs."""

    can_repeat = True

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        self.run_id_base = run_id_base

    def run(self) -> list[Experience]:
        (answer,) = self.model.chat([{"role": "user", "content": "a"}])
        answer.reward = 1.0
        answer.eid.run = self.run_id_base + 1
        return [answer]


class Writes(Workflow):
    """Builds an experience of the tokens that an argument names."""

    def run(self) -> list[Experience]:
        tokens = self.task.workflow_args["tokens"]
        mask = self.task.workflow_args.get("mask")
        return [Experience(tokens=tokens, prompt_length=1, reward=1.0, action_mask=mask)]


class Unrewarded(Workflow):
    """Says nothing of a reward."""

    def run(self) -> list[Experience]:
        return self.model.chat([{"role": "user", "content": "a"}])


class SmallVocabulary(ArithmeticEngine):
    """Knows the tokens of ASCII."""

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        if unknown := [token for token in token_ids if not 0 <= token < 128]:
            raise UserError(f"the model has 128 tokens, and {unknown[0]} is none of them")
        return await super().score(token_ids, num_likeliest=num_likeliest)


@pytest.fixture(autouse=True, scope="module")
def registered() -> None:
    for kind in (Changes, Numbered, Writes, Unrewarded):
        WORKFLOWS.register(f"test_built_{kind.__name__}", kind)


async def changed(change: str, folder: Path) -> AttemptResult:
    runner = runner_of(folder, "test_built_Changes", workflow_args={"change": change})
    (result,) = await made_by(runner, 0)
    assert result.failure == ""
    return result


@pytest.mark.parametrize(
    "change", ["tokens_set", "tokens_in_place", "logprobs_set", "one_more_token"]
)
async def test_an_answer_that_was_changed_is_built(change: str, tmp_path: Path) -> None:
    (made,) = (await changed(change, tmp_path)).experiences
    assert made.info[BUILT] is True and made.metrics[BUILT] == 1.0
    end = made.sequence.response_length
    assert made.version_spans == (VersionSpan(start=0, end=end, version=4, incarnation=2),)


@pytest.mark.parametrize(
    "change", ["masked", "masked_in_logprobs", "told_truncated", "without_info"]
)
async def test_control_an_answer_of_which_less_is_trained_stays_the_engines(
    change: str, tmp_path: Path
) -> None:
    (made,) = (await changed(change, tmp_path)).experiences
    assert BUILT not in made.info and made.metrics[BUILT] == 0.0
    assert made.sampling is not None and made.chat_template_sha256
    assert made.sequence.rollout_logprobs.tolist() == said_of(made)
    assert made.sequence.action_mask.sum() == (2 if "masked" in change else 3)
    cut = FinishReason.LENGTH if change == "told_truncated" else FinishReason.STOP
    assert made.finish_reason is cut


async def test_an_experience_that_names_its_run_is_of_that_run(tmp_path: Path) -> None:
    results = await made_by(runner_of(tmp_path, "test_built_Numbered"), 0, 1)
    assert [len(result.experiences) for result in results] == [0, 1]
    assert "no experience for this one" in results[0].failure


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"tokens": [97, 98, 500]}, "the model has 128 tokens, and 500 is none of them"),
        ({"tokens": [97, -1, 98]}, "the model has 128 tokens, and -1 is none of them"),
        ({"tokens": [97] * 600}, "an experience of 600 tokens, `model.max_model_len` is 506"),
        ({"tokens": [97, 98, 99], "mask": [True]}, "action_mask has shape"),
    ],
)
async def test_what_no_trainer_can_take_is_told(
    arguments: dict[str, Any], told: str, tmp_path: Path
) -> None:
    runner = runner_of(tmp_path, "test_built_Writes", SmallVocabulary(), workflow_args=arguments)
    (result,) = await made_by(runner, 0)
    assert told in result.failure


@pytest.mark.parametrize(("advantage", "told"), [("none", ""), ("grpo", "without a reward")])
async def test_a_reward_is_needed_by_algorithms_that_use_it(
    advantage: str, told: str, tmp_path: Path
) -> None:
    algorithm: Any = {"advantage_fn": advantage, "policy_loss_fn": "sft"}
    runner = runner_of(tmp_path, "test_built_Unrewarded", algorithm=algorithm)
    (result,) = await made_by(runner, 0)
    assert told in result.failure
    assert [own.reward for own in result.experiences] == ([] if told else [0.0])


async def test_control_tokens_of_the_model_are_taken(tmp_path: Path) -> None:
    arguments: Any = {"tokens": [97, 98, 99]}
    runner = runner_of(tmp_path, "test_built_Writes", SmallVocabulary(), workflow_args=arguments)
    (result,) = await made_by(runner, 0)
    assert result.failure == "" and result.experiences[0].metrics[BUILT] == 1.0
