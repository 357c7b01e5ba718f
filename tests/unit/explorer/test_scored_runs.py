"""A model that scores is the reward of runs on the loop, in threads and in processes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.explorer.engine.interface import EnginePool, SlowCallReporter
from services.explorer.engine.scorer import FrozenScorer
from services.explorer.engines import LoadedModel
from services.explorer.types import AttemptResult
from tests.unit.explorer.builders import CharacterTokenizer
from tests.unit.explorer.runs import outcome_of
from tests.unit.explorer.users import plugin_folder, user_processes
from trinity.runtime.presence import WaitRegistry
from trinity.types import JsonObject
from trinity.workflows.generation import RatedChat

FILE = '''
from trinity.workflows.workflow import Workflow

ASKED = [{"role": "user", "content": "1+1="}]

class Rates(Workflow):
    """Asks the scorer by itself, for the whole and for steps."""
    def run(self):
        [made] = self.model.chat(ASKED)
        [scorer] = self.auxiliary_model_wrappers
        assert scorer.scores and self.auxiliary_models == [None]
        answer = {"role": "assistant", "content": made.response_text}
        made.reward = scorer.wait_in_thread(scorer.rate([*ASKED, answer]))
        steps = scorer.wait_in_thread(scorer.rate_steps(ASKED, ["a", "bcd"], tag="+"))
        made.info = {"steps": steps}
        return [made]

class Rewarded(Workflow):
    """Calls its taskset's reward, as files of Trinity-RFT do."""
    def run(self):
        [made] = self.model.chat(ASKED)
        reward = self.task.reward_fn(**self.task.reward_fn_args)
        parts = reward(response=made.response_text, messages=ASKED)
        made.reward = sum(parts.values())
        return [made]

class Asks(Workflow):
    """Takes the scorer for a judge."""
    def run(self):
        return self.auxiliary_model_wrappers[0].chat(ASKED)
'''


class Lengths(FrozenScorer):
    """Scores an answer by its length, and a step by the place of its end."""

    async def rate(self, chat: RatedChat) -> list[list[float]]:
        answer = str(chat.messages[-1]["content"])
        assert chat.messages[0] == {"role": "user", "content": "1+1="}
        return [[float(end)] for end in chat.step_ends or [len(answer)]]

    async def check(self) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest.fixture(autouse=True, scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with plugin_folder(tmp_path_factory.mktemp("plugins"), scored_here=FILE):
        yield


def scorer() -> LoadedModel:
    waits = WaitRegistry(owner="explorer", on_change=lambda: None)
    pool = EnginePool([Lengths(), Lengths()])
    engine = SlowCallReporter(pool, name="rm", waits=waits)
    return LoadedModel(engine=engine, replicas=(), tokenizer=CharacterTokenizer())


async def outcome(folder: Path, workflow: str, *, is_isolated: bool = False) -> AttemptResult:
    explorer: JsonObject = {
        "auxiliary_models": [
            {"name": "rm", "model_path": "/models/rm", "role": "score", "max_model_len": 64}
        ]
    }
    values: dict[str, Any] = {"default_workflow_type": workflow}
    if workflow != "scored_here.Rates":
        values["default_reward_fn_type"] = "model_reward"
        values["reward_fn_args"] = {"scale": 2.0}
    if not is_isolated:
        return await outcome_of(folder, explorer=explorer, auxiliary=[scorer()], **values)
    async with user_processes() as processes:
        return await outcome_of(
            folder,
            explorer=explorer,
            auxiliary=[scorer()],
            processes=processes,
            timeout_seconds=120.0,
            **values,
        )


async def test_the_scores_of_a_built_in_workflow_are_parts_and_metrics(tmp_path: Path) -> None:
    result = await outcome(tmp_path, "simple_workflow")
    assert result.failure == ""
    [made] = result.experiences
    length = float(len(made.response_text))
    assert (made.reward, made.reward_parts) == (2 * length, {"score": 2 * length})
    assert made.metrics["model_score"] == length


@pytest.mark.parametrize("is_isolated", [False, True])
async def test_workflows_that_block_ask_the_same_scorer(is_isolated: bool, tmp_path: Path) -> None:
    rated = await outcome(tmp_path, "scored_here.Rates", is_isolated=is_isolated)
    assert rated.failure == ""
    [made] = rated.experiences
    assert made.reward == len(made.response_text)
    assert made.info["steps"] == [2.0, 6.0]
    rewarded = await outcome(tmp_path, "scored_here.Rewarded", is_isolated=is_isolated)
    assert rewarded.failure == ""
    [made] = rewarded.experiences
    assert made.reward == 2 * len(made.response_text)


async def test_a_scorer_that_is_asked_to_write_says_so(tmp_path: Path) -> None:
    result = await outcome(tmp_path, "scored_here.Asks")
    assert "the model scores texts and writes none: ask it with `rate`" in result.failure
