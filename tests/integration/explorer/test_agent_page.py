"""The agent of docs/agents-with-tools.md plays with vLLM's parser and a model that is scripted."""

import importlib.util
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.explorer.openai_api.server import AttemptApiServer
from tests.integration.explorer.test_parsers import parsers
from tests.support.pages import write_files
from tests.unit.runtime.test_sandbox import needs_sandbox
from tests.unit.workflows.scripted import ScriptedEngine, TurnTokenizer, scripted_model, task_of
from trinity.config.schema.explorer import RolloutModelConfig
from trinity.plugins import REWARDS
from trinity.rewards.reward import BoundReward
from trinity.types import Experience, JsonObject

ROW: JsonObject = {
    "question": "A crate holds 24 bottles. How many are in 17 crates?",
    "answer": "408",
}
CALL = '<tool_call>\n{{"name": "calculate", "arguments": {{"expression": "{}"}}}}\n</tool_call>'


@pytest.fixture
async def api() -> AsyncIterator[AttemptApiServer]:
    api = AttemptApiServer(
        model_path="m",
        rollout=RolloutModelConfig(),
        tokenizer=TurnTokenizer(),
        parsers=parsers(enable_auto_tool_choice=True, tool_call_parser="hermes"),
    )
    await api.start_api()
    yield api
    await api.stop_api()


@pytest.fixture
def agent(tmp_path: Path) -> Any:
    return file_of_the_page(tmp_path, "calculator_agent.py")


def file_of_the_page(tmp_path: Path, name: str) -> Any:
    write_files("docs/agents-with-tools.md", tmp_path)
    found = importlib.util.spec_from_file_location("page", tmp_path / name)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


async def play(
    workflow: Any, api: AttemptApiServer, *answers: str
) -> tuple[list[Experience], ScriptedEngine]:
    engine = ScriptedEngine(list(answers))
    model = scripted_model(engine)
    model.keep_history()
    model.enable_api(api.register_attempt(model))
    reward = BoundReward(REWARDS.get("accuracy_reward"), {}, "accuracy_reward")
    task = task_of(ROW, reward=reward)
    return await workflow(task=task, model=model).run_async(), engine


async def test_a_call_is_answered_and_the_answer_is_scored(
    agent: Any, api: AttemptApiServer
) -> None:
    made, engine = await play(agent.CalculatorAgent, api, CALL.format("24 * 17"), "408")
    assert "<tool>408\n" in engine.prompts[1], "the model sees what the tool says"
    assert [sample.reward for sample in made] == [1.0] * len(made)
    trained = sum(int(sample.sequence.action_mask.sum()) for sample in made)
    assert trained == len(CALL.format("24 * 17") + "408") + 2, "the call and the answer"


async def test_a_wrong_answer_has_no_reward_and_turns_are_bounded(
    agent: Any, api: AttemptApiServer
) -> None:
    made, _ = await play(agent.CalculatorAgent, api, "407")
    assert [sample.reward for sample in made] == [0.0]
    made, engine = await play(agent.CalculatorAgent, api, *[CALL.format("1/0")] * 9)
    assert len(engine.prompts) == 4 and {sample.reward for sample in made} == {0.0}
    assert "<tool>error: division by zero\n" in engine.prompts[1]


def test_the_tool_computes_and_runs_nothing(agent: Any) -> None:
    assert agent.calculate("(1 + 2) * 3 / 2 - 0.5") == "4"
    for wrong in ("__import__('os')", "2 ** 9", "1 +", "'a' * 9"):
        assert agent.calculate(wrong).startswith("error: "), wrong
    assert json.dumps(agent.CALCULATE)


@needs_sandbox
async def test_the_second_agent_of_the_page_runs_code_in_a_sandbox(
    tmp_path: Path, api: AttemptApiServer
) -> None:
    code = "open('sum', 'w').write(str(24 * 17))"
    answers = [tool_call("python", code=code), tool_call("bash", script="cat sum"), "408"]
    workflow = file_of_the_page(tmp_path, "sandbox_agent.py").SandboxAgent
    made, engine = await play(workflow, api, *answers)
    assert "<tool>408\n" in engine.prompts[2]
    assert [sample.reward for sample in made] == [1.0] * len(made)


def tool_call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
