"""The policy with a hint judges the tokens of its own answer without one."""

from typing import Any

import numpy as np
import pytest

from tests.unit.workflows.scripted import ScriptedEngine, scripted_model, task_of
from trinity.errors import UserError
from trinity.plugins import WORKFLOWS
from trinity.types import Experience, FinishReason, JsonObject
from trinity.workflows.generation import Scores

ROW: JsonObject = {"question": "1+1=", "answer": "2", "error": "it is not 3"}
SAID = "3"


class Hinted(ScriptedEngine):
    """Finds the n-th of the tokens that it is given e^-n likely."""

    def __init__(self, answers: list[str]) -> None:
        super().__init__(answers)
        self.scored: list[str] = []

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        self.scored.append(bytes(token_ids).decode())
        return Scores(logprobs=[-float(place) for place in range(1, len(token_ids))])


async def answered(
    row: JsonObject,
    engine: Hinted,
    *,
    max_prompt_tokens: int = 9000,
    temperature: float = 1.0,
    **task: Any,
) -> Experience:
    model = scripted_model(engine, max_prompt_tokens=max_prompt_tokens, temperature=temperature)
    kind = WORKFLOWS.get("self_distill_workflow")
    [experience] = await kind(task=task_of(row, **task), model=model).run_async()
    assert isinstance(experience, Experience)
    return experience


async def test_the_same_tokens_are_scored_after_the_question_with_the_hint() -> None:
    engine = Hinted([SAID])
    experience = await answered(ROW, engine, workflow_args={"hint_template": " ({hint})"})
    assert engine.prompts == ["<user>1+1=\n<assistant>"]
    prompt = "<user>1+1= (2)\n<assistant>"
    assert engine.scored == [f"{prompt}{SAID}\n"]
    length = experience.sequence.response_length
    found = experience.arrays["teacher_logprobs"].data
    assert found.tolist() == [-float(len(prompt) + place) for place in range(length)]
    own = experience.sequence.rollout_logprobs
    assert experience.metrics["hint_gain"] == pytest.approx(float(found.sum()) - float(own.sum()))
    assert experience.reward == 0.0


async def test_the_hint_may_be_a_column_and_the_template_has_a_usual_form() -> None:
    engine = Hinted([SAID])
    await answered(ROW, engine, workflow_args={"hint_key": "error"})
    assert "it is not 3" in engine.scored[0] and "Now answer" in engine.scored[0]
    with pytest.raises(UserError, match="no column"):
        await answered(ROW, Hinted([SAID]), workflow_args={"hint_key": "fault"})


async def test_a_row_without_a_hint_teaches_nothing() -> None:
    engine = Hinted([SAID])
    experience = await answered({**ROW, "error": None}, engine, workflow_args={"hint_key": "error"})
    assert engine.scored == []
    own = experience.sequence.rollout_logprobs
    assert np.array_equal(experience.arrays["teacher_logprobs"].data, own)
    assert experience.metrics["hint_gain"] == 0.0


async def test_evaluations_and_prompts_that_are_too_long_are_not_scored() -> None:
    engine = Hinted([SAID])
    assert "teacher_logprobs" not in (await answered(ROW, engine, is_eval=True)).arrays
    long = await answered(ROW, engine, max_prompt_tokens=4)
    assert long.finish_reason is FinishReason.PROMPT_TRUNCATED
    assert long.arrays["teacher_logprobs"].data.tolist() == [0.0]
    assert engine.scored == []


async def test_a_template_without_a_place_for_the_hint_is_refused() -> None:
    with pytest.raises(UserError, match=r"hint_template has no \{hint\}"):
        await answered(ROW, Hinted([SAID]), workflow_args={"hint_template": "be right"})


async def test_an_answer_at_another_temperature_is_not_compared() -> None:
    with pytest.raises(UserError, match=r"those of answers at 0\.5: give `temperature: 1`"):
        await answered(ROW, Hinted([SAID]), temperature=0.5)
    seen = await answered(ROW, Hinted([SAID]), temperature=0.5, is_eval=True)
    assert seen.response_text == SAID
