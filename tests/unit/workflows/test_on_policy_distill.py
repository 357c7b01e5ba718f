"""A teacher's log-probabilities go with the student's own tokens to the trainer."""

from collections.abc import Sequence

import numpy as np
import pytest

from services.trainer.batch_rows import RowReader
from tests.unit.workflows.scripted import ScriptedEngine, TurnTokenizer, scripted_model, task_of
from trinity.api.v1 import buffer_pb2
from trinity.data.codec import SampleRef, experience_to_proto
from trinity.errors import UserError
from trinity.plugins import WORKFLOWS
from trinity.types import EID, BlobRef, Experience, FinishReason, JsonObject, SamplingParams
from trinity.workflows.generation import ModelLimits, Scores
from trinity.workflows.model import ModelWrapper
from trinity.workflows.on_policy_distill_workflow import TEACHER_LOGPROBS

ROW: JsonObject = {"question": "1+1=", "answer": "2"}
SAID = r"So it is \boxed{2}"
NUM_TOKENS = len(SAID) + 1


class Teacher(ScriptedEngine):
    """Finds the n-th of the tokens that it is given e^-n likely."""

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        self.prompts.append(bytes(token_ids).decode())
        return Scores(logprobs=[-float(place) for place in range(1, len(token_ids))])


class OtherTokenizer(TurnTokenizer):
    """Means other letters by the same tokens."""

    def decode(self, token_ids: list[int]) -> str:
        return super().decode(token_ids).swapcase()


def teacher_with(
    tokenizer: TurnTokenizer, longest: int = 20_000, name: str = "teacher"
) -> tuple[Teacher, ModelWrapper]:
    engine = Teacher([])
    model = ModelWrapper(
        generator=engine,
        tokenizer=tokenizer,
        limits=ModelLimits(max_model_len=longest, max_prompt_tokens=longest),
        sampling=SamplingParams(),
        weights=(0, 0),
        seed_of_call=lambda call: call,
        auxiliary_name=name,
    )
    return engine, model


async def taught(
    teachers: Sequence[ModelWrapper],
    name: str = "on_policy_distill_workflow",
    max_prompt_tokens: int = 9000,
    **args: object,
) -> Experience:
    student = scripted_model(ScriptedEngine([SAID]), max_prompt_tokens=max_prompt_tokens)
    task = task_of(ROW, workflow_args=args)
    kind = WORKFLOWS.get(name)
    [experience] = await kind(task=task, model=student, auxiliary_models=teachers).run_async()
    assert isinstance(experience, Experience)
    return experience


async def test_the_trainer_gets_the_teachers_log_probabilities_of_the_answer() -> None:
    engine, teacher = teacher_with(TurnTokenizer())
    experience = await taught([teacher])
    assert engine.prompts == [f"<user>1+1=\n<assistant>{SAID}\n"]
    begin = experience.sequence.prompt_length
    expected = -np.arange(begin, begin + NUM_TOKENS, dtype=np.float32)
    experience.eid = EID(stage="main", batch=1, task=0, run=0, suffix="")
    ref = SampleRef(tenant="t", experiment_id="e", assignment_id="a", taskset="s", task_index=0)
    message = buffer_pb2.BatchRow(experience=experience_to_proto(experience, ref), weight=1.0)
    [row] = RowReader(formatter=None, mixed_with_rollouts=False).read([message])
    assert row.teacher_logprobs is not None
    assert row.teacher_logprobs.tolist() == expected.tolist()
    assert row.mask.all()
    own = experience.sequence.rollout_logprobs.sum()
    assert experience.metrics["kl_divergence"] == pytest.approx(own - expected.sum())
    assert experience.reward == 0.0


async def test_a_mathematical_answer_is_scored_beside() -> None:
    _, teacher = teacher_with(TurnTokenizer())
    experience = await taught([teacher], "on_policy_distill_math_workflow")
    assert (experience.reward, experience.metrics["accuracy"]) == (1.0, 1.0)
    assert experience.sequence.prompt_text.startswith("<system>Please reason step by step")
    assert len(experience.arrays["teacher_logprobs"].data) == NUM_TOKENS


async def test_of_a_question_that_was_too_long_nothing_is_asked() -> None:
    engine, teacher = teacher_with(TurnTokenizer())
    experience = await taught([teacher], max_prompt_tokens=4)
    assert experience.finish_reason is FinishReason.PROMPT_TRUNCATED
    assert experience.arrays["teacher_logprobs"].data.tolist() == [0.0]
    assert experience.metrics["kl_divergence"] == 0.0
    assert engine.prompts == []


async def test_what_cannot_be_taught_is_said() -> None:
    with pytest.raises(UserError, match=r"explorer\.auxiliary_models"):
        await taught([])
    with pytest.raises(UserError, match="it needs the same tokenizer"):
        await taught([teacher_with(OtherTokenizer())[1]])
    with pytest.raises(UserError, match="1 to 12 tokens"):
        await taught([teacher_with(TurnTokenizer(), longest=12)[1]])
    with pytest.raises(UserError, match=r"temperature 1, not 0\.5"):
        await taught([teacher_with(TurnTokenizer())[1]], temperature=0.5)
    with pytest.raises(UserError, match="no number"):
        await taught([teacher_with(TurnTokenizer())[1]], temperature="hot")


async def test_a_rows_column_chooses_its_teacher() -> None:
    engines = [teacher_with(TurnTokenizer(), name=name) for name in ("1", "2")]
    models = [model for _, model in engines]
    experience = await taught(models, teacher_key="answer")
    assert TEACHER_LOGPROBS in experience.arrays
    assert [len(engine.prompts) for engine, _ in engines] == [0, 1]
    with pytest.raises(UserError, match=r"has '2' in the column `answer`.*has this `name`"):
        await taught(models[:1], teacher_key="answer")


async def test_a_teacher_that_reads_no_images_is_named() -> None:
    _, teacher = teacher_with(TurnTokenizer())
    image = BlobRef(name="image", sha256=b"\0" * 32, size=9, media_type="image/png")
    with pytest.raises(UserError, match=r"the model `teacher` in .* reads none"):
        await teacher.token_logprobs([1, 2], images=[image])
