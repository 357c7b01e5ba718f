"""Models that score, each in a real process: their scores are those of a plain loop."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from examples.addition.model import save_model
from services.explorer.engine.interface import EngineDied
from services.explorer.engine.scorer import RatedEncoder, TransformersScorer
from services.explorer.engine.tokenizer import HuggingFaceTokenizer, load_tokenizer
from services.explorer.engines import EngineManager, LoadedModel
from tests.support.scorers import KINDS, PlainLoop, ScorerKind, save_scorer
from tests.unit.explorer.builders import ArithmeticEngine, build_plan
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import UserError
from trinity.runtime.presence import WaitRegistry
from trinity.types import JsonObject, SamplingParams
from trinity.workflows.generation import RatedChat, rater_of
from trinity.workflows.messages import Message

ANSWERS = ("", "4", "it is 4", "first 1\n\nthen 2\n\nso 3", "9" * 60)
DIED_SECONDS = 60.0


def chat_of(answer: str) -> RatedChat:
    question = Message(role="user", content="2+2=")
    return RatedChat(messages=[question, Message(role="assistant", content=answer)])


def plan_of(folder: Path, models: list[JsonObject]) -> ExperimentPlan:
    return build_plan(
        folder,
        model={"model_path": str(models[0]["model_path"]), "max_model_len": 96},
        explorer={"auxiliary_models": [{"dtype": "float32", **model} for model in models]},
    )


class Running:
    """Scorers of a plan, as the explorer starts them; the policy's engine is a stand-in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._managers: list[EngineManager] = []

    async def start(self, *models: JsonObject) -> tuple[LoadedModel, ...]:
        async def start(_: object) -> ArithmeticEngine:
            return ArithmeticEngine()

        waits = WaitRegistry(owner="explorer", on_change=lambda: None)
        manager = EngineManager(start=start, waits=waits)
        self._managers.append(manager)
        plan = plan_of(self._folder, list(models))
        return (await manager.ensure(plan.stages[0])).auxiliary

    async def close(self) -> None:
        for manager in self._managers:
            await manager.close_engines()


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    found = Running(tmp_path)
    yield found
    await found.close()


async def rated(model: LoadedModel, chat: RatedChat) -> list[list[float]]:
    return await rater_of(model.engine).rate(chat)


def tokens_of(directory: Path, chat: RatedChat) -> list[int]:
    tokenizer = tokenizer_of(directory)
    return RatedEncoder(tokenizer=tokenizer, max_tokens=96, truncates=True)(chat).token_ids


@cache
def tokenizer_of(directory: Path) -> HuggingFaceTokenizer:
    return load_tokenizer(str(directory), None)


@pytest.mark.parametrize("kind", KINDS)
async def test_scores_are_those_of_a_plain_loop(
    kind: ScorerKind, running: Running, tmp_path: Path
) -> None:
    directory = save_scorer(tmp_path / "scorer", kind)
    [model] = await running.start(
        {"model_path": str(directory), "engine_type": "transformers", "engine_num": 2}
    )
    chats = [chat_of(answer) for answer in ANSWERS] * 3
    found = await asyncio.gather(*(rated(model, chat) for chat in chats))
    plain = PlainLoop(directory, kind)
    for chat, scores in zip(chats, found, strict=True):
        expected = plain.scores(tokens_of(directory, chat))
        assert scores == [pytest.approx(expected[-1], abs=1e-4)]
    assert len({scores[0][0] for scores in found}) == len(ANSWERS), "answers differ in their scores"


async def test_steps_are_scored_at_their_tags(running: Running, tmp_path: Path) -> None:
    directory = save_scorer(tmp_path / "scorer", "process")
    [model] = await running.start({"model_path": str(directory), "engine_type": "transformers"})
    steps = ["first 1", "then 2", "so 3"]
    parts = [f"{step}\n\n" for step in steps]
    ends = list(itertools.accumulate(map(len, parts)))
    chat = RatedChat(messages=chat_of("".join(parts)).messages, step_ends=ends)
    tokens = tokens_of(directory, chat)
    newline = tokenizer_of(directory).encode("\n").token_ids[0]
    places = [i for i, token in enumerate(tokens) if token == newline][1::2]
    expected = PlainLoop(directory, "process").scores(tokens)
    assert await rated(model, chat) == [pytest.approx(expected[i], abs=1e-4) for i in places]
    assert len(places) == len(steps)


async def test_a_value_head_is_found_by_its_tensors_and_leaves_the_gpu_alone(
    tmp_path: Path,
) -> None:
    directory = save_scorer(tmp_path / "scorer", "value head")
    [model] = plan_of(tmp_path, [{"model_path": str(directory)}]).stages[0].auxiliary_models
    assert (model.role, model.engine.engine_type, model.engine.num_gpus) == (
        "score",
        "transformers",
        0,
    )


async def test_a_model_without_a_head_is_scored_by_words(running: Running, tmp_path: Path) -> None:
    save_model(tmp_path / "judge", 4)
    words: JsonObject = {"role": "score", "score_tokens": ["-", "+"]}
    [model] = await running.start({"model_path": str(tmp_path / "judge"), **words})
    chat = chat_of("4")
    tokens = tokens_of(tmp_path / "judge", chat)
    ids = [tokenizer_of(tmp_path / "judge").encode(w).token_ids[0] for w in "-+"]
    weights = AutoModelForCausalLM.from_pretrained(tmp_path / "judge", dtype=torch.float32)
    with torch.no_grad():
        expected = weights(torch.tensor([tokens])).logits[0, -1, ids].tolist()
    assert await rated(model, chat) == [pytest.approx(expected, abs=1e-4)]


async def test_a_scorer_writes_nothing_and_a_speaker_scores_nothing(
    running: Running, tmp_path: Path
) -> None:
    directory = save_scorer(tmp_path / "scorer", "classifier")
    [model] = await running.start({"model_path": str(directory), "engine_type": "transformers"})
    with pytest.raises(UserError, match="scores texts and writes none"):
        await model.engine.generate([1, 2], SamplingParams(max_tokens=4))
    with pytest.raises(UserError, match="writes texts and has no scores"):
        rater_of(ArithmeticEngine())


async def test_the_death_of_one_process_is_named(running: Running, tmp_path: Path) -> None:
    directory = save_scorer(tmp_path / "scorer", "classifier")
    given: JsonObject = {
        "model_path": str(directory),
        "engine_type": "transformers",
        "name": "rm",
    }
    [model] = await running.start(given)
    [engine] = model.replicas
    assert isinstance(engine, TransformersScorer)
    engine._worker.process.kill()
    async with asyncio.timeout(DIED_SECONDS):
        with pytest.raises(EngineDied, match="the engine of auxiliary model `rm` died"):
            while True:
                await rated(model, chat_of("4"))
    with pytest.raises(EngineDied, match="`rm` died"):
        await model.engine.check()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["classifier", "process"])
async def test_vllms_pooling_runner_gives_the_same_scores(
    kind: ScorerKind, running: Running, tmp_path: Path
) -> None:
    directory = save_scorer(tmp_path / "scorer", kind)
    [model] = await running.start({"model_path": str(directory)})
    chats = [chat_of(answer) for answer in ANSWERS]
    found = await asyncio.gather(*(rated(model, chat) for chat in chats))
    plain = PlainLoop(directory, kind)
    for chat, scores in zip(chats, found, strict=True):
        expected = plain.scores(tokens_of(directory, chat))
        assert scores == [pytest.approx(expected[-1], abs=1e-4)]
