"""A model served by the real engine: what clients get, and which weights answer."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from services.explorer.engine.interface import Engine
from services.explorer.engine.tokenizer import load_tokenizer
from services.explorer.engine.weight_transfer import WeightLoader
from services.explorer.engines import LoadedModel, LoadedStageModels
from services.explorer.serving.work import build_serving_runner
from tests.integration.explorer.conftest import END, MAX_MODEL_LEN, SharedEngines
from tests.unit.explorer.builders import build_plan, unheard_beats
from trinity.run.launch.modes import serve_plan
from trinity.runtime.presence import Heartbeats
from trinity.weights.ledger import LedgerEntry, LedgerKey, WeightsLedger
from trinity.weights.manifest import ManifestHead, seal

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
    pytest.mark.thorough,
]

SECONDS = 300
KEY = "a key"
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "1+1="}]


def publish(run: Path, model: Path, version: int) -> None:
    """Another model's weights under a version's name."""
    directory = run / "stages/main/weights" / f"v{version}-1"
    shutil.copytree(model, directory)
    digest = f"{version:064x}"
    head = ManifestHead(
        kind="weights", stage="main", step=version, incarnation=1, weights_sha256=digest
    )
    entry = LedgerEntry(
        directory=directory.name,
        version=version,
        incarnation=1,
        manifest_sha256=seal(directory, head).hex(),
        weights_sha256=digest,
    )
    key = LedgerKey.create(run)
    WeightsLedger(folder=run / "stages/main", stage="main", key=key).write([entry])


@dataclass
class Served:
    """A served run."""

    run: Path
    client: openai.AsyncOpenAI
    heartbeats: Heartbeats

    async def said(self) -> tuple[str, str]:
        """One question's answer, and by which weights."""
        answer = await self.client.chat.completions.create(
            model="p/n-serve",
            messages=QUESTION,
            seed=1,
        )
        return answer.choices[0].message.content or "", answer.system_fingerprint or ""

    async def completed(self) -> tuple[str, str | None]:
        """What a plain text goes on with, and by which weights."""
        answer = await self.client.completions.create(model="p/n-serve", prompt="1+1=", seed=1)
        return answer.choices[0].text, answer.system_fingerprint

    async def until(self, fingerprint: str) -> str:
        """The answer of these weights."""
        async with asyncio.timeout(SECONDS):
            while True:
                text, weights = await self.said()
                if weights == fingerprint:
                    return text


@asynccontextmanager
async def serving(folder: Path, model: Path, engine: Engine) -> AsyncIterator[Served]:
    made = build_plan(
        folder,
        mode="serve",
        model={"model_path": str(model), "temperature": 1.0},
        explorer={
            "proxy_port": 1,
            "service_status_check_interval": 1,
            "rollout_model": {"api_key": KEY, "dtype": "float32"},
        },
    )
    plan = serve_plan(made)
    [stage] = plan.stages
    run = made.job_path
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"stages": [{"name": "main"}]}))
    tokenizer = load_tokenizer(str(model), None)
    assert tokenizer.end_token_ids == (END,) and stage.max_model_len <= MAX_MODEL_LEN
    policy = LoadedModel(engine=engine, replicas=(engine,), tokenizer=tokenizer)
    models = LoadedStageModels(policy=policy, loader=WeightLoader(engine))
    async with unheard_beats() as heartbeats:
        work = build_serving_runner(
            plan=stage,
            tenant="default",
            label=plan.label,
            models=models,
            heartbeats=heartbeats,
            drain_seconds=10,
        )
        going = asyncio.ensure_future(work.run_stage())
        try:
            async with asyncio.timeout(SECONDS):
                while "serving at " not in heartbeats.member.activity:
                    assert not going.done(), going.result()
                    await asyncio.sleep(0.05)
            address = heartbeats.member.activity.removeprefix("serving at ").partition(", ")[0]
            async with openai.AsyncOpenAI(base_url=address, api_key=KEY, max_retries=0) as client:
                yield Served(run, client, heartbeats)
        finally:
            work.stop_taking_work()
            await going


async def test_newer_weights_answer_and_streams_tell_the_same(
    engines: SharedEngines, models: tuple[Path, Path], tmp_path: Path
) -> None:
    async with serving(tmp_path, models[0], await engines.get()) as served:
        first, weights = await served.said()
        assert weights == "v0-0"
        assert served.heartbeats.member.activity.endswith(", the model as given")
        stream = await served.client.chat.completions.create(
            model="p/n-serve",
            messages=QUESTION,
            seed=1,
            stream=True,
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == first
        assert chunks[-1].choices[0].finish_reason in ("stop", "length")
        plain = [await served.completed() for _ in range(2)]
        assert plain[0] == plain[1]
        publish(served.run, models[1], 4)
        best = served.run / "stages/main/best"
        shutil.copytree(models[1], best)
        head = ManifestHead(
            kind="weights", stage="main", step=3, incarnation=1, weights_sha256="3" * 64
        )
        seal(best, head)
        assert await served.until("v4-1") != first
        async with asyncio.timeout(SECONDS):
            while ", version 4 of stage main (" not in served.heartbeats.member.activity:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        told = f"the best is version 3: another `name` and `model.model_path={best}` serve it"
        assert told in served.heartbeats.member.activity
        with pytest.raises(openai.NotFoundError, match="no model `other`"):
            await served.client.chat.completions.create(model="other", messages=QUESTION)
        with pytest.raises(openai.BadRequestError, match="tokens"):
            long = [{"role": "user", "content": "1" * 500}]
            await served.client.chat.completions.create(model="p/n-serve", messages=long)  # type: ignore[arg-type]
