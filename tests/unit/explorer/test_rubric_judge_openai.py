"""The rubric's judge behind an OpenAI-compatible address."""

from collections.abc import AsyncIterator

import pytest

from services.explorer.openai_api.server import AttemptApiServer
from tests.unit.workflows.scripted import ScriptedEngine, TurnTokenizer, scripted_model, task_of
from trinity.config.schema.explorer import RolloutModelConfig
from trinity.errors import UserError
from trinity.plugins import WORKFLOWS
from trinity.types import Experience, JsonObject
from trinity.workflows.model_access import ApiAccess

ROW: JsonObject = {"question": "1+1=", "rubric": [{"description": "names the sum", "weight": 2}]}


@pytest.fixture
async def judge() -> AsyncIterator[tuple[ApiAccess, ScriptedEngine]]:
    """A judge behind an address, and its engine."""
    engine = ScriptedEngine(lambda _: "It does. <grade>7</grade>")
    server = AttemptApiServer(
        model_path="judge", rollout=RolloutModelConfig(), tokenizer=TurnTokenizer()
    )
    await server.start_api()
    model = scripted_model(engine)  # the server knows it as long as it is referred to
    yield server.register_attempt(model), engine
    await model.close()
    await server.stop_api()


async def judged(**args: str) -> Experience:
    kind = WORKFLOWS.get("rubric_judge_openai_workflow")
    policy = scripted_model(ScriptedEngine(["2"]))
    task = task_of(ROW, workflow_args={"judge_model_name": "judge", **args})
    [experience] = await kind(task=task, model=policy).run_async()
    return experience


async def test_the_grade_of_the_model_at_the_address_is_the_reward(
    judge: tuple[ApiAccess, ScriptedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    access, engine = judge
    monkeypatch.setenv("MY_JUDGE", access.address)
    monkeypatch.setenv("OPENAI_API_KEY", access.key)
    experience = await judged(judge_api_base_url_env="MY_JUDGE")
    assert experience.reward == pytest.approx(0.7)
    assert experience.metrics == {"rubric": pytest.approx(0.7), "judge_success": 1.0}
    assert "names the sum" in engine.prompts[0] and "Answer:\n2" in engine.prompts[0]
    assert engine.prompts[0].startswith("<system>You grade answers to questions.")


async def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(UserError, match="variable OPENAI_BASE_URL, which is not set"):
        await judged()
    with pytest.raises(UserError, match=r"set `workflow_args\.judge_model_name`"):
        await judged(judge_model_name="")
