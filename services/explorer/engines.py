"""Starts and keeps the engines of a stage's models: its policy and the auxiliary models."""

import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from services.explorer.engine.external import ByteTokenizer, ExternalEngine, read_external_access
from services.explorer.engine.external_scorer import ExternalScorer
from services.explorer.engine.hosts import EngineHosts
from services.explorer.engine.in_flight import InFlightEngine, PausingEngine
from services.explorer.engine.interface import (
    Engine,
    EngineOptions,
    EngineOwnDevice,
    EnginePool,
    EngineTurns,
    SlowCallReporter,
)
from services.explorer.engine.scorer import RatedEncoder, score_token_ids, start_scorer
from services.explorer.engine.tokenizer import (
    MAX_CACHED_TOKENS,
    HuggingFaceTokenizer,
    load_tokenizer,
)
from services.explorer.engine.vllm_options import detect_hardware, prepare_environment
from services.explorer.engine.weight_transfer import WeightLoader
from services.explorer.openai_api.schemas import SchemaChecker
from services.explorer.openai_api.server import AttemptApiServer
from services.explorer.openai_api.tools import ResponseParsers, load_parsers
from services.explorer.types import AttemptApi, WeightsId, model_weights
from trinity.config.model_code_policy import trusts_model_code
from trinity.config.plan.arithmetic import model_keys
from trinity.config.plan.model import newest_snapshot
from trinity.config.plan.parts import AuxiliaryModel, ExternalAccess
from trinity.config.plan.rope import changes_rope, rope_keys
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.base import Args
from trinity.config.schema.explorer import EngineConfig
from trinity.config.schema.model import ModelConfig
from trinity.config.sizing.stage_sizes import engine_remedies, is_out_of_memory
from trinity.errors import UserError
from trinity.plugins import WORKFLOWS
from trinity.runtime.http.connections import ConnectionTable, HttpLimits
from trinity.runtime.json_values import JsonObject
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.retry import RetryPolicy, deadline
from trinity.runtime.threads import in_daemon_thread
from trinity.weights.whole import remove_unused
from trinity.workflows.generation import ChatTokenizer

ASKING_AT_ADDRESS = ("agent", "verifiers")
"""Workflows whose programs ask at the address of their run."""

logger = logging.getLogger(__name__)

StartEngine = Callable[[EngineOptions], Awaitable[Engine]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageModel:
    """A model to start engines for; running engines of an equal one are kept."""

    path: str
    max_len: int
    chat_template: str | None
    template_kwargs: Args
    """Variables of the chat template."""
    rollout: EngineConfig
    has_api: bool
    serves: bool = False
    external: ExternalAccess | None = None
    """Access to the model, if others serve it."""
    section: ModelConfig | None = None
    """The user's section of the policy, which may change its position embeddings."""
    name: str = ""
    """Name of an auxiliary model; empty for the policy."""
    scores: bool = False
    """True for a model that scores texts."""
    truncates: bool = True
    """True if chats that are too long to be scored are cut."""
    score_tokens: tuple[str, ...] = ()
    """Tokens whose logits are its scores, if it has no head for them."""
    records_experts: bool = False
    """True if training replays the experts that the engine chooses."""
    runs_code: bool = False
    """True if the Python code that comes with the model is run."""
    sleeps: bool = False
    """True if its engine gives the device to the trainer by turns."""
    keeps_requests: bool = False
    """True if its engine takes new weights amid requests."""
    first_gpu: int = 0
    num_process_gpus: int = 0

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
        template_kwargs=_template_kwargs(plan.config.model, plan.external_model),
        rollout=rollout,
        has_api=rollout.enable_openai_api or _has_agents(plan),
        serves=plan.mode == "serve",
        external=plan.external_model,
        section=plan.config.model if changes_rope(plan.config.model) else None,
        records_experts=plan.config.algorithm.enable_router_replay,
        runs_code=plan.config.model.trust_remote_code,
        sleeps=plan.takes_turns,
        keeps_requests=plan.keeps_requests,
        num_process_gpus=total,
    )
    models = [policy]
    first_gpu = 0 if plan.external_model is not None else rollout.num_gpus
    for model in plan.auxiliary_models:
        models.append(replace(_auxiliary_model(model), first_gpu=first_gpu, num_process_gpus=total))
        first_gpu += model.engine.num_gpus
    return tuple(models)


def _has_agents(plan: StagePlan) -> bool:
    workflows = {taskset.workflow for taskset in (*plan.tasksets, *plan.eval_tasksets)}
    return any(name in workflows and name in WORKFLOWS.builtins for name in ASKING_AT_ADDRESS)


def _auxiliary_model(model: AuxiliaryModel) -> StageModel:
    return StageModel(
        name=f"auxiliary model `{model.name}`",
        path=model.model_path,
        max_len=model.max_model_len,
        chat_template=model.chat_template,
        template_kwargs=_template_kwargs(model, model.external),
        rollout=model.engine,
        runs_code=model.engine.trust_remote_code,
        has_api=model.role == "generate",
        external=model.external,
        scores=model.role == "score",
        truncates=model.truncates_prompts,
        score_tokens=model.engine.score_tokens,
    )


def _template_kwargs(model: ModelConfig | AuxiliaryModel, external: ExternalAccess | None) -> Args:
    """Returns the chat template's arguments; an external server gets only the configured ones."""
    return model.template_kwargs if external is None else model.chat_template_kwargs


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """The engines of one model with its tokenizer, parsers and API."""

    engine: Engine
    """All engines of the model as one."""
    replicas: tuple[Engine, ...]
    tokenizer: ChatTokenizer
    parsers: ResponseParsers | None = None
    """Finds tool calls and reasoning in responses, if the model has parsers."""
    api: AttemptApi | None = None
    """Server for workflows' own clients, if the model has one."""
    schemas: SchemaChecker | None = None
    """Checks the schemas of requests, if the model is served over HTTP and has an engine here."""

    async def close_model(self) -> None:
        """Closes the API and the engines."""
        if self.api is not None:
            await self.api.stop_api()
        if self.schemas is not None:
            await self.schemas.close()
        await self.engine.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedStageModels:
    """The models of a stage, with their engines."""

    policy: LoadedModel
    loader: WeightLoader
    """Loads weights into the policy's engine."""
    auxiliary: tuple[LoadedModel, ...] = ()


class EngineManager:
    """The engines of one stage's models; several engines of a model work as one."""

    def __init__(
        self, *, start: StartEngine, waits: WaitRegistry, hosts: EngineHosts | None = None
    ) -> None:
        self._start = start
        self._waits = waits
        self._hosts = hosts
        """The other hosts, if each engine is on several."""
        self._models: tuple[StageModel, ...] = ()
        self._started: list[LoadedModel] = []
        self._running: LoadedStageModels | None = None
        self._seconds = 0.0
        self._variables: Mapping[str, str] = {}
        """Variables of the stage, which override those of the process."""
        self._connections = ConnectionTable(HttpLimits.from_open_files())
        """Connections to the addresses of all models."""

    @property
    def is_running(self) -> bool:
        """True if there is an engine."""
        return self._running is not None

    async def ensure(self, plan: StagePlan, turns: EngineTurns | None = None) -> LoadedStageModels:
        """Returns the engines for a stage: the running ones, or new ones if it needs others.

        On a shared device, a new engine starts in its own turn and sleeps once it is ready.

        Raises: UserError when a model cannot be run or does not load in time.
        """
        turns = turns or EngineOwnDevice()
        models = stage_models(plan)
        self._seconds = plan.config.synchronizer.sync_timeout
        self._variables = _as_strings(plan.config.explorer.env_vars)
        if self._running is None or self._models != models:
            await self.close_engines()
            async with turns.starting():
                self._running = await self._start_models(models)
                self._models = models
                turns.attach(*_policy_of(self._running))
                await turns.give_back()
        else:
            self._running = await self._reconnect_external(self._running)
            turns.attach(*_policy_of(self._running))
        return self._running

    async def close_engines(self) -> None:
        """Closes the engines, if there are any."""
        started, self._started, self._running = self._started, [], None
        for model in started:
            await model.close_model()

    async def _start_models(self, models: Sequence[StageModel]) -> LoadedStageModels:
        """Starts the models one after the other, as `_start_replicas` does with engines."""
        if self._hosts is not None and any(model.external is None for model in models):
            await self._hosts.wait_until_complete(self._waits)
        await in_daemon_thread(lambda: _prepare(models))
        try:
            for model in models:
                self._started.append(await self._start_model_with_timeout(model))
        except BaseException:
            await self.close_engines()
            raise
        policy = self._started[0]
        loader = WeightLoader(
            policy.engine,
            loaded=model_weights(models[0].path),
            in_flight=[part for part in policy.replicas if isinstance(part, InFlightEngine)],
            spans_hosts=self._hosts is not None,
        )
        return self._bundle(models, loader)

    async def _reconnect_external(self, running: LoadedStageModels) -> LoadedStageModels:
        """Reconnects to external models: one may have been given up before, and addresses and
        keys are the stage's own.
        """
        for index, model in enumerate(self._models):
            if model.external is not None:
                await self._started[index].close_model()
                self._started[index] = await self._connect_external(model, model.external)
        return self._bundle(self._models, running.loader)

    def _bundle(self, models: Sequence[StageModel], loader: WeightLoader) -> LoadedStageModels:
        policy, *auxiliary = self._started
        reported = tuple(
            replace(
                loaded, engine=SlowCallReporter(loaded.engine, name=model.name, waits=self._waits)
            )
            for loaded, model in zip(auxiliary, models[1:], strict=True)
        )
        return LoadedStageModels(policy=policy, loader=loader, auxiliary=reported)

    async def _start_model_with_timeout(self, model: StageModel) -> LoadedModel:
        seconds = self._seconds
        what = f"{model.path} as {model.name}" if model.name else model.path
        error = UserError(
            f"{model.role} did not load {model.path} in {seconds:g} s (`synchronizer.sync_timeout`)"
        )
        with self._waits.waiting(for_="engine", reason=f"to load {what}", deadline_seconds=seconds):
            async with deadline(seconds, error):
                return await self._start_model(model)

    async def _start_model(self, model: StageModel) -> LoadedModel:
        if model.external is not None:
            return await self._connect_external(model, model.external)
        begun = time.monotonic()
        model = replace(model, runs_code=trusts_model_code(model.runs_code, model.path))
        tokenizer = await in_daemon_thread(lambda: _load_tokenizer(model))
        try:
            parsers = await in_daemon_thread(lambda: load_parsers(model.rollout, tokenizer))
            options = await in_daemon_thread(lambda: _engine_options(model, tokenizer))
            replicas = await self._start_replicas(options)
            if model.keeps_requests:
                replicas = _in_flight(replicas)
        except (RuntimeError, ValueError, OSError, TypeError) as error:
            logger.exception("the engine did not start")
            why = str(error)
            if is_out_of_memory(error):
                why += f"; what may help: {engine_remedies(model.rollout, model.max_len)}"
            raise UserError(f"{model.role} cannot run {model.path}: {why}") from error
        seconds = round(time.monotonic() - begun, 1)
        logger.info("engine ready", extra={"seconds": seconds, "of": model.role})
        schemas = SchemaChecker(model.path) if model.has_api or model.serves else None
        return LoadedModel(
            engine=_as_one(replicas, loads_in_turn=model.keeps_requests),
            replicas=replicas,
            tokenizer=tokenizer,
            parsers=parsers,
            api=await self._open_api(model, tokenizer, parsers, schemas),
            schemas=schemas,
        )

    async def _open_api(
        self,
        model: StageModel,
        tokenizer: ChatTokenizer,
        parsers: ResponseParsers | None = None,
        schemas: SchemaChecker | None = None,
    ) -> AttemptApi | None:
        if not model.has_api:
            return None
        api = AttemptApiServer(
            model_path=model.path,
            rollout=model.rollout,
            tokenizer=tokenizer,
            parsers=parsers,
            template_kwargs=model.template_kwargs,
            schemas=schemas,
            connections=self._connections,
        )
        await api.start_api()
        return api

    async def _connect_external(self, model: StageModel, external: ExternalAccess) -> LoadedModel:
        """Sets up an external model; no request is sent before a workflow makes one."""
        kind = ExternalScorer if model.scores else ExternalEngine
        engine = kind(
            access=read_external_access(external, {**os.environ, **self._variables}),
            retry_policy=RetryPolicy(self._waits, self._seconds),
            template_kwargs=model.template_kwargs,
        )
        tokenizer = ByteTokenizer()
        api = await self._open_api(model, tokenizer)
        return LoadedModel(engine=engine, replicas=(engine,), tokenizer=tokenizer, api=api)

    async def _start_replicas(self, options: EngineOptions) -> tuple[Engine, ...]:
        """Starts engines one at a time: each start sets the environment of its processes."""
        started: list[Engine] = []
        try:
            for number in range(options.rollout.engine_num):
                started.append(await self._start_engine(replace(options, number=number)))
        except BaseException:
            await EnginePool(started).close()
            raise
        return tuple(started)

    async def _start_engine(self, options: EngineOptions) -> Engine:
        if options.encode_rated is not None:
            return await start_scorer(options)
        if self._hosts is None:
            return await self._start(options)
        return await self._hosts.start_engine(options, self._start)


def _in_flight(engines: Sequence[Engine]) -> tuple[Engine, ...]:
    """Returns the engines as ones that take weights amid requests."""
    begun = WeightsId(version=0, incarnation=0)
    pausing = [engine for engine in engines if isinstance(engine, PausingEngine)]
    if len(pausing) < len(engines):
        raise UserError(
            "`synchronizer.weight_update: keep` takes engines on one host each: use `drain`"
        )
    return tuple(InFlightEngine(engine, begun) for engine in pausing)


def _as_one(engines: Sequence[Engine], *, loads_in_turn: bool) -> Engine:
    return engines[0] if len(engines) == 1 else EnginePool(engines, loads_in_turn=loads_in_turn)


def _policy_of(models: LoadedStageModels) -> tuple[Engine, WeightLoader]:
    return models.policy.engine, models.loader


def _engine_options(model: StageModel, tokenizer: HuggingFaceTokenizer) -> EngineOptions:
    return EngineOptions(
        model_path=model.path,
        max_model_len=model.max_len,
        end_token_ids=tokenizer.end_token_ids,
        rollout=model.rollout,
        first_gpu=model.first_gpu,
        num_process_gpus=model.num_process_gpus,
        structured_output=model.has_api or model.serves,
        rope=None if model.section is None else _rope_of(model.path, model.section),
        records_experts=model.records_experts,
        trusts_code=model.runs_code,
        sleeps=model.sleeps,
        role=model.role,
        encode_rated=RatedEncoder(
            tokenizer=tokenizer, max_tokens=model.max_len, truncates=model.truncates
        )
        if model.scores
        else None,
        vision=tokenizer.vision.tokens if tokenizer.vision is not None else None,
        score_token_ids=score_token_ids(tokenizer, model.score_tokens),
    )


def _rope_of(path: str, section: ModelConfig) -> JsonObject:
    """Returns keys to lay over the config.json of the model, which the trainer changes alike."""
    directory = Path(path) if Path(path).is_dir() else newest_snapshot("model", path)
    keys = model_keys(directory, {}) if directory is not None else None
    if keys is None:
        raise UserError(
            f"`model.rope_scaling` and `model.rope_theta` are laid over the config.json of {path}, "
            "which is not here: fetch the model first, or give its directory"
        )
    return rope_keys(keys, section)


def _as_strings(variables: Mapping[str, str | bool | int | float]) -> dict[str, str]:
    return {name: str(value) for name, value in variables.items()}


def _prepare(models: Sequence[StageModel]) -> None:
    """Prepares the environment before the first import of heavy modules, which read it.

    Access to the hub is allowed if one of the models comes from there.
    """
    own = [model for model in models if model.external is None]
    if not own:
        return
    remove_unused()
    path = next((model.path for model in own if not Path(model.path).is_dir()), own[0].path)
    prepare_environment(path, detect_hardware(), sum(model.rollout.engine_num for model in own))


def _load_tokenizer(model: StageModel) -> HuggingFaceTokenizer:
    return load_tokenizer(
        model.path,
        model.chat_template,
        template_kwargs=model.template_kwargs,
        max_cached_tokens=0 if model.serves else MAX_CACHED_TOKENS,
        trusts_code=model.runs_code,
    )
