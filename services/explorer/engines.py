"""The one engine of this process, started for the plan of a stage and kept while it fits."""

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.explorer.daemon_thread import in_daemon_thread
from services.explorer.engine import Engine, EngineOptions
from services.explorer.status import Status
from services.explorer.tokenizer import end_token_ids, load_tokenizer
from services.explorer.weights import WeightLoader
from trinity.config.plan import StagePlan
from trinity.errors import UserError
from trinity.workflows.generation import ChatTokenizer

logger = logging.getLogger(__name__)

StartEngine = Callable[[EngineOptions], Awaitable[Engine]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEngine:
    """An engine with what goes with its model."""

    engine: Engine
    tokenizer: ChatTokenizer
    loader: WeightLoader


class Engines:
    """At most one engine at a time."""

    def __init__(self, *, start: StartEngine, status: Status) -> None:
        self._start = start
        self._status = status
        self._key: tuple[EngineOptions, str | None] | None = None
        self._running: RunningEngine | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is an engine."""
        return self._running is not None

    async def ensure(self, plan: StagePlan) -> RunningEngine:
        """The engine for a stage: the one that runs, or a new one when the stage needs another.

        Raises: UserError when the model cannot be run.
        """
        options = await in_daemon_thread(lambda: _options(plan))
        key = (options, plan.chat_template)
        if self._running is None or self._key != key:
            await self.close()
            with self._status.waiting("engine", "engine", "to load the model"):
                self._running = await self._begin(options, plan.chat_template)
            self._key = key
        return self._running

    async def close(self) -> None:
        """End the engine, if there is one."""
        running, self._running = self._running, None
        if running is not None:
            await running.engine.close()

    async def _begin(self, options: EngineOptions, chat_template: str | None) -> RunningEngine:
        begun = time.monotonic()
        tokenizer = await in_daemon_thread(
            lambda: load_tokenizer(options.model_path, chat_template)
        )
        try:
            engine = await self._start(options)
        except (RuntimeError, ValueError, OSError, TypeError) as error:
            reason = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
            logger.exception("the engine did not start")
            raise UserError(
                f"the rollout engine cannot run {options.model_path}: {reason}"
            ) from error
        logger.info("engine ready", extra={"seconds": round(time.monotonic() - begun, 1)})
        return RunningEngine(engine=engine, tokenizer=tokenizer, loader=WeightLoader(engine))


def _options(plan: StagePlan) -> EngineOptions:
    return EngineOptions(
        model_path=plan.model_path,
        max_model_len=plan.max_model_len,
        end_token_ids=end_token_ids(plan.model_path),
        rollout=plan.config.explorer.rollout_model,
    )
