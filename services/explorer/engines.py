"""The engines of this process, started for the plan of a stage and kept while they fit."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from services.explorer.engine import Engine, EngineOptions
from services.explorer.engine_pool import EnginePool
from services.explorer.openai_api.parsers import ResponseParsers, load_parsers
from services.explorer.openai_api.server import OpenAIApi
from services.explorer.tokenizer import REMEMBERED_CHATS, HuggingFaceTokenizer, load_tokenizer
from services.explorer.vllm_options import look_at_machine, prepare_environment
from services.explorer.weights import WeightLoader, model_weights
from trinity.config.plan import StagePlan
from trinity.config.rollout_model import RolloutModelConfig
from trinity.errors import UserError
from trinity.threads import in_daemon_thread
from trinity.waits import Waits
from trinity.workflows.generation import ChatTokenizer

logger = logging.getLogger(__name__)

StartEngine = Callable[[EngineOptions], Awaitable[Engine]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEngine:
    """An engine with what goes with its model."""

    engine: Engine
    """All of them as one."""
    each: tuple[Engine, ...]
    tokenizer: ChatTokenizer
    loader: WeightLoader
    parsers: ResponseParsers | None = None
    """What finds calls of tools and thoughts in responses, if anything does."""
    api: OpenAIApi | None = None
    """Where workflows' own clients reach the model, if they may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    path: str
    max_len: int
    chat_template: str | None
    enable_thinking: bool | None
    rollout: RolloutModelConfig
    serves: bool


class Engines:
    """At most those of one model at a time; several of them work as one."""

    def __init__(self, *, start: StartEngine, waits: Waits) -> None:
        self._start = start
        self._waits = waits
        self._model: _Model | None = None
        self._running: RunningEngine | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is an engine."""
        return self._running is not None

    async def ensure(self, plan: StagePlan) -> RunningEngine:
        """The engine for a stage: the one that runs, or a new one when the stage needs another.

        Raises: UserError when the model cannot be run, or does not run in time.
        """
        model = _Model(
            path=plan.model_path,
            max_len=plan.max_model_len,
            chat_template=plan.chat_template,
            enable_thinking=plan.config.model.enable_thinking,
            rollout=plan.config.explorer.rollout_model,
            serves=plan.mode == "serve",
        )
        if self._running is None or self._model != model:
            await self.close()
            self._running = await self._begin_in_time(model, plan.config.synchronizer.sync_timeout)
            self._model = model
        return self._running

    async def close(self) -> None:
        """End the engines, if there are any."""
        running, self._running = self._running, None
        if running is None:
            return
        if running.api is not None:
            await running.api.close()
        await running.engine.close()

    async def _begin_in_time(self, model: _Model, seconds: float) -> RunningEngine:
        limit = asyncio.timeout(seconds)
        waits = self._waits.waiting(
            for_="engine", reason=f"to load {model.path}", deadline_seconds=seconds
        )
        try:
            with waits:
                async with limit:
                    return await self._begin(model)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise UserError(
                f"the rollout engine did not load {model.path} in {seconds:g} s "
                "(`synchronizer.sync_timeout`)"
            ) from error

    async def _begin(self, model: _Model) -> RunningEngine:
        begun = time.monotonic()
        tokenizer = await in_daemon_thread(lambda: _load_tokenizer(model))
        options = EngineOptions(
            model_path=model.path,
            max_model_len=model.max_len,
            end_token_ids=tokenizer.end_token_ids,
            rollout=model.rollout,
        )
        try:
            parsers = await in_daemon_thread(lambda: load_parsers(model.rollout, tokenizer))
            each = await self._start_all(options)
        except (RuntimeError, ValueError, OSError, TypeError) as error:
            logger.exception("the engine did not start")
            raise UserError(f"the rollout engine cannot run {model.path}: {error}") from error
        logger.info("engine ready", extra={"seconds": round(time.monotonic() - begun, 1)})
        engine = each[0] if len(each) == 1 else EnginePool(each)
        return RunningEngine(
            engine=engine,
            each=each,
            tokenizer=tokenizer,
            loader=WeightLoader(engine, holds=model_weights(model.path)),
            parsers=parsers,
            api=await _open_api(model, tokenizer, parsers),
        )

    async def _start_all(self, options: EngineOptions) -> tuple[Engine, ...]:
        """One after the other: what an engine's processes see is set while they are started."""
        started: list[Engine] = []
        try:
            for number in range(options.rollout.engine_num):
                started.append(await self._start(replace(options, number=number)))
        except BaseException:
            await EnginePool(started).close()
            raise
        return tuple(started)


async def _open_api(
    model: _Model, tokenizer: ChatTokenizer, parsers: ResponseParsers | None
) -> OpenAIApi | None:
    if not model.rollout.enable_openai_api:
        return None
    api = OpenAIApi(
        model_path=model.path, rollout=model.rollout, tokenizer=tokenizer, parsers=parsers
    )
    await api.open()
    return api


def _load_tokenizer(model: _Model) -> HuggingFaceTokenizer:
    """The first import of heavy modules, which read the environment."""
    prepare_environment(model.path, look_at_machine(), model.rollout.engine_num)
    return load_tokenizer(
        model.path,
        model.chat_template,
        enable_thinking=model.enable_thinking,
        num_remembered=0 if model.serves else REMEMBERED_CHATS,
    )
