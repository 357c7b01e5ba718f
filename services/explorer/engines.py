"""The models that a stage has engines for: its policy and the auxiliary models."""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from services.explorer.engine.external import ExternalEngine, ExternalTokenizer, read_access
from services.explorer.engine.interface import Engine, EngineOptions
from services.explorer.engine.pool import EnginePool, SlowCalls
from services.explorer.engine.tokenizer import (
    MAX_REMEMBERED_TOKENS,
    HuggingFaceTokenizer,
    load_tokenizer,
)
from services.explorer.engine.vllm_options import look_at_machine, prepare_environment
from services.explorer.engine.weight_transfer import WeightLoader
from services.explorer.openai_api.server import OpenAIApi
from services.explorer.openai_api.tools import ResponseParsers, load_parsers
from services.explorer.retry import Patience
from services.explorer.types import model_weights
from trinity.config.plan.parts import AuxiliaryModel, ExternalAccess
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.explorer import EngineConfig
from trinity.errors import UserError
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.threads import in_daemon_thread
from trinity.workflows.generation import ChatTokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageModel:
    """A model to start engines for; running engines of an equal one are kept."""

    path: str
    max_len: int
    chat_template: str | None
    enable_thinking: bool | None
    rollout: EngineConfig
    has_api: bool
    serves: bool = False
    external: ExternalAccess | None = None
    """Access to the model, if others serve it."""
    name: str = ""
    """Name of an auxiliary model; empty for the policy."""
    first_gpu: int = 0
    gpus_of_process: int = 0

    @property
    def role(self) -> str:
        """Name of the model's engine in messages."""
        return f"the engine of {self.name}" if self.name else "the rollout engine"


def stage_models(plan: StagePlan) -> tuple[StageModel, ...]:
    """Returns the policy first; the GPUs of the others follow its own, in the same order."""
    rollout = plan.config.explorer.rollout_model
    total = plan.num_rollout_gpus
    policy = StageModel(
        path=plan.model_path,
        max_len=plan.max_model_len,
        chat_template=plan.chat_template,
        enable_thinking=plan.config.model.enable_thinking,
        rollout=rollout,
        has_api=rollout.enable_openai_api,
        serves=plan.mode == "serve",
        external=plan.external_model,
        gpus_of_process=total,
    )
    models = [policy]
    first_gpu = 0 if plan.external_model is not None else rollout.num_gpus
    for model in plan.auxiliary_models:
        models.append(replace(_beside(model), first_gpu=first_gpu, gpus_of_process=total))
        first_gpu += model.engine.num_gpus
    return tuple(models)


def _beside(model: AuxiliaryModel) -> StageModel:
    return StageModel(
        name=f"auxiliary model `{model.name}`",
        path=model.model_path,
        max_len=model.max_model_len,
        chat_template=model.chat_template,
        enable_thinking=model.enable_thinking,
        rollout=model.engine,
        has_api=True,
        external=model.external,
    )


StartEngine = Callable[[EngineOptions], Awaitable[Engine]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningModel:
    """The engines of one model with its tokenizer, parsers and API."""

    engine: Engine
    """All engines of the model as one."""
    each: tuple[Engine, ...]
    tokenizer: ChatTokenizer
    parsers: ResponseParsers | None = None
    """Finds tool calls and reasoning in responses, if the model has parsers."""
    api: OpenAIApi | None = None
    """Server for workflows' own clients, if the model has one."""

    async def close(self) -> None:
        """Closes the API and the engines."""
        if self.api is not None:
            await self.api.close()
        await self.engine.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEngine:
    """The policy's engines and the auxiliary models."""

    engine: Engine
    """All engines of the model as one."""
    each: tuple[Engine, ...]
    tokenizer: ChatTokenizer
    loader: WeightLoader
    parsers: ResponseParsers | None = None
    """Finds tool calls and reasoning in responses, if the model has parsers."""
    api: OpenAIApi | None = None
    auxiliary: tuple[RunningModel, ...] = ()


class Engines:
    """The engines of one stage's models; several engines of a model work as one."""

    def __init__(self, *, start: StartEngine, waits: WaitRegistry) -> None:
        self._start = start
        self._waits = waits
        self._models: tuple[StageModel, ...] = ()
        self._started: list[RunningModel] = []
        self._running: RunningEngine | None = None
        self._seconds = 0.0
        self._variables: Mapping[str, str] = {}
        """Variables of the stage, which override those of the process."""

    @property
    def is_running(self) -> bool:
        """True if there is an engine."""
        return self._running is not None

    async def ensure(self, plan: StagePlan) -> RunningEngine:
        """Returns the engines for a stage: the running ones, or new ones if it needs others.

        Raises: UserError when a model cannot be run or does not load in time.
        """
        models = stage_models(plan)
        self._seconds = plan.config.synchronizer.sync_timeout
        self._variables = _texts(plan.config.explorer.env_vars)
        if self._running is None or self._models != models:
            await self.close()
            self._running = await self._begin_all(models)
            self._models = models
        else:
            self._running = await self._reach_again(self._running)
        return self._running

    async def close(self) -> None:
        """Closes the engines, if there are any."""
        started, self._started, self._running = self._started, [], None
        for model in started:
            await model.close()

    async def _begin_all(self, models: Sequence[StageModel]) -> RunningEngine:
        """Starts the models one after the other, as `_start_all` does with engines."""
        await in_daemon_thread(lambda: _prepare(models))
        try:
            for model in models:
                self._started.append(await self._begin_in_time(model))
        except BaseException:
            await self.close()
            raise
        loader = WeightLoader(self._started[0].engine, holds=model_weights(models[0].path))
        return self._together(models, loader)

    async def _reach_again(self, running: RunningEngine) -> RunningEngine:
        """Reconnects to external models: one may have been given up before, and addresses and
        keys are the stage's own.
        """
        for index, model in enumerate(self._models):
            if model.external is not None:
                await self._started[index].close()
                self._started[index] = await self._reach(model, model.external)
        return self._together(self._models, running.loader)

    def _together(self, models: Sequence[StageModel], loader: WeightLoader) -> RunningEngine:
        policy, *auxiliary = self._started
        return RunningEngine(
            engine=policy.engine,
            each=policy.each,
            tokenizer=policy.tokenizer,
            parsers=policy.parsers,
            loader=loader,
            api=policy.api,
            auxiliary=tuple(
                replace(running, engine=SlowCalls(running.engine, name=m.name, waits=self._waits))
                for running, m in zip(auxiliary, models[1:], strict=True)
            ),
        )

    async def _begin_in_time(self, model: StageModel) -> RunningModel:
        seconds = self._seconds
        limit = asyncio.timeout(seconds)
        what = f"{model.path} as {model.name}" if model.name else model.path
        waits = self._waits.waiting(
            for_="engine", reason=f"to load {what}", deadline_seconds=seconds
        )
        try:
            with waits:
                async with limit:
                    return await self._begin(model)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise UserError(
                f"{model.role} did not load {model.path} in {seconds:g} s "
                "(`synchronizer.sync_timeout`)"
            ) from error

    async def _begin(self, model: StageModel) -> RunningModel:
        if model.external is not None:
            return await self._reach(model, model.external)
        begun = time.monotonic()
        tokenizer = await in_daemon_thread(lambda: _load_tokenizer(model))
        options = EngineOptions(
            model_path=model.path,
            max_model_len=model.max_len,
            end_token_ids=tokenizer.end_token_ids,
            rollout=model.rollout,
            first_gpu=model.first_gpu,
            gpus_of_process=model.gpus_of_process,
            holds_to_schemas=model.has_api or model.serves,
            role=model.role,
        )
        try:
            parsers = await in_daemon_thread(lambda: load_parsers(model.rollout, tokenizer))
            each = await self._start_all(options)
        except (RuntimeError, ValueError, OSError, TypeError) as error:
            logger.exception("the engine did not start")
            raise UserError(f"{model.role} cannot run {model.path}: {error}") from error
        seconds = round(time.monotonic() - begun, 1)
        logger.info("engine ready", extra={"seconds": seconds, "of": model.role})
        return RunningModel(
            engine=each[0] if len(each) == 1 else EnginePool(each),
            each=each,
            tokenizer=tokenizer,
            parsers=parsers,
            api=await _open_api(model, tokenizer, parsers),
        )

    async def _reach(self, model: StageModel, external: ExternalAccess) -> RunningModel:
        """Sets up an external model; no request is sent before a workflow makes one."""
        engine = ExternalEngine(
            access=read_access(external, {**os.environ, **self._variables}),
            patience=Patience(self._waits, self._seconds),
        )
        tokenizer = ExternalTokenizer()
        api = await _open_api(model, tokenizer)
        return RunningModel(engine=engine, each=(engine,), tokenizer=tokenizer, api=api)

    async def _start_all(self, options: EngineOptions) -> tuple[Engine, ...]:
        """Starts engines one at a time: each start sets the environment of its processes."""
        started: list[Engine] = []
        try:
            for number in range(options.rollout.engine_num):
                started.append(await self._start(replace(options, number=number)))
        except BaseException:
            await EnginePool(started).close()
            raise
        return tuple(started)


async def _open_api(
    model: StageModel, tokenizer: ChatTokenizer, parsers: ResponseParsers | None = None
) -> OpenAIApi | None:
    if not model.has_api:
        return None
    api = OpenAIApi(
        model_path=model.path, rollout=model.rollout, tokenizer=tokenizer, parsers=parsers
    )
    await api.open()
    return api


def _texts(variables: Mapping[str, str | bool | int | float]) -> dict[str, str]:
    return {name: str(value) for name, value in variables.items()}


def _prepare(models: Sequence[StageModel]) -> None:
    """Prepares the environment before the first import of heavy modules, which read it.

    Access to the hub is allowed if one of the models comes from there.
    """
    own = [model for model in models if model.external is None]
    if not own:
        return
    path = next((model.path for model in own if not Path(model.path).is_dir()), own[0].path)
    prepare_environment(path, look_at_machine(), sum(model.rollout.engine_num for model in own))


def _load_tokenizer(model: StageModel) -> HuggingFaceTokenizer:
    return load_tokenizer(
        model.path,
        model.chat_template,
        enable_thinking=model.enable_thinking,
        max_remembered_tokens=0 if model.serves else MAX_REMEMBERED_TOKENS,
    )
