"""Serves a model with the newest weights that its run has published: assembly and work.

It is a separate experiment that reads the run's directory. It has no part in the run's services and
pins no weights, so it may start before the run, outlast it, and be slow at no cost to it.
"""

import asyncio
import json
import logging
from pathlib import Path
from typing import TypedDict

from services.explorer.engines import LoadedModel, LoadedStageModels
from services.explorer.media import MediaStore, UnstoredMedia
from services.explorer.openai_api.chat import ResponseWriter
from services.explorer.openai_api.handler import ApiHandler
from services.explorer.openai_api.images import RequestImages
from services.explorer.serving.access import ServingAccessPolicy, read_or_create_key
from services.explorer.serving.pool import LendEngine, ModelBorrower, ServingPool
from services.explorer.serving.server import ModelServer
from services.explorer.types import ExplorerStopped, WeightsId, WeightsVersion, model_weights
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import ManifestError, RolloutStageFailed, UserError
from trinity.runtime.http.connections import ConnectionTable, HttpLimits
from trinity.runtime.members import MemberPhase
from trinity.runtime.presence import Heartbeats
from trinity.runtime.security.credentials import Credentials
from trinity.weights.ledger import LEDGER_FILE, LedgerError, LedgerKey, WeightsLedger
from trinity.weights.manifest import FileSignature, file_signature, read_regular_file
from trinity.weights.stored import best_model

logger = logging.getLogger(__name__)


PLAN_FILE = "config.json"
"""The plan that the run was started with, which names its stages in order."""
CHECK_SECONDS = 1.0
"""Interval of the checks for a dead engine."""


def announced_weights(job_dir: Path) -> tuple[WeightsVersion, ...]:
    """Returns the announced versions of the last stage that has any, newest first.

    The stage's ledger names them, so directories of other processes are excluded. Their files are
    not looked at here.

    Raises: LedgerError if the ledger cannot be trusted, or there are weights without a ledger.
    """
    without_ledger: Path | None = None
    for stage in reversed(_stages(job_dir)):
        folder = job_dir / "stages" / stage
        if not (folder / LEDGER_FILE).exists():
            without_ledger = without_ledger or next(iter(folder.glob("weights/v*-*")), None)
        elif found := _announced(job_dir, stage, folder):
            return found
    if without_ledger is not None:
        raise LedgerError(
            f"no ledger says that {without_ledger} was announced: serve these weights by "
            "`model.model_path`, as a model of their own"
        )
    return ()


def _stages(job_dir: Path) -> list[str]:
    """Returns the names of the run's stages; empty while their file is missing or incomplete."""
    try:
        plan = json.loads(read_regular_file(job_dir / PLAN_FILE))
        return [str(stage["name"]) for stage in plan["stages"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []


def _announced(job_dir: Path, stage: str, folder: Path) -> tuple[WeightsVersion, ...]:
    ledger = WeightsLedger(folder=folder, stage=stage, key=LedgerKey.read(job_dir))
    found = [
        WeightsVersion(
            id=WeightsId(version=entry.version, incarnation=entry.incarnation),
            path=folder / "weights" / entry.directory,
            manifest_sha256=bytes.fromhex(entry.manifest_sha256),
            weights_sha256=bytes.fromhex(entry.weights_sha256),
            weights_blake3=bytes.fromhex(entry.weights_blake3),
        )
        for entry in ledger.read()
    ]
    return tuple(sorted(found, key=_age, reverse=True))


def _age(weights: WeightsVersion) -> tuple[int, int]:
    return weights.id.incarnation, weights.id.version


def _is_older(weights: WeightsVersion, loaded: WeightsVersion) -> bool:
    """Returns True for older weights of the same stage; another stage is a later one."""
    return weights.path.parent == loaded.path.parent and _age(weights) < _age(loaded)


class ServingRunner:
    """Serves the model and looks for newer weights at the plan's interval.

    Weights that are damaged are tried again once their files change; meanwhile the newest before
    them are served.
    """

    def __init__(
        self,
        *,
        plan: StagePlan,
        pool: ServingPool,
        server: ModelServer,
        access: ServingAccessPolicy,
        heartbeats: Heartbeats,
        drain_seconds: float,
    ) -> None:
        self._interval = plan.config.explorer.service_status_check_interval
        self._job_dir = Path(plan.served.job_dir) if plan.served is not None else None
        self._pool = pool
        self._server = server
        self._access = access
        self._heartbeats = heartbeats
        self._drain_seconds = drain_seconds
        self._stop = asyncio.Event()
        self._refused: dict[WeightsVersion, FileSignature] = {}
        self._untrusted = ""

    async def run_stage(self) -> ExplorerStopped:
        """Serves until `stop_taking_work` is called or the task is cancelled.

        Raises: UserError when the address is not available, RolloutStageFailed for weights that the
        engine cannot load, EngineDied.
        """
        await self._load_newest()
        async with self._server.open(self._drain_seconds):
            self._report_weights()
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(self._poll_weights()),
                    tasks.create_task(self._poll_engines()),
                ]
                await self._stop.wait()
                for task in background:
                    task.cancel()
        return ExplorerStopped()

    def stop_taking_work(self) -> None:
        """Stops taking requests; those in progress may end."""
        self._stop.set()

    async def _poll_weights(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self._load_newest()
            self._report_weights()

    def _report_weights(self) -> None:
        """Says where which weights are served, and how the best ones are if these are others."""
        key = "" if self._access.key_file is None else f", key in {self._access.key_file}"
        weights = self._pool.oldest_weights
        version, stage = weights.id.version, weights.path.parent.parent
        what = f"version {version} of stage {stage.name}" if version else "the model as given"
        best = best_model(self._job_dir, stage.name) if version and self._job_dir else None
        if best is not None and best.version != version:
            what += (
                f" (the best is version {best.version}: another `name` and "
                f"`model.model_path={best.path}` serve it)"
            )
        served = f"serving at {self._server.address}{key}, {what}"
        self._heartbeats.set_activity(served, MemberPhase.SERVING)

    async def _poll_engines(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self._pool.check_engines_alive()

    async def _load_newest(self) -> None:
        """Loads the newest complete weights, unless the engines already have them."""
        for weights in await self._announced():
            if self._pool.is_loaded_everywhere(weights) or await self._load(weights):
                break
        self._heartbeats.set_version(self._pool.oldest_weights.id.version)

    async def _announced(self) -> tuple[WeightsVersion, ...]:
        """Returns the announced weights, newest first, down to those that the engines have."""
        if self._job_dir is None:
            return ()
        try:
            announced = await asyncio.to_thread(announced_weights, self._job_dir)
        except LedgerError as error:
            self._report_untrusted(str(error))
            return ()
        self._untrusted = ""
        loaded = self._pool.oldest_weights
        return tuple(weights for weights in announced if not _is_older(weights, loaded))

    def _report_untrusted(self, reason: str) -> None:
        """Logs once why no weights of the run are served, however often it looks."""
        if reason != self._untrusted:
            logger.error("the run's weights are not served", extra={"reason": reason})
        self._untrusted = reason

    async def _load(self, weights: WeightsVersion) -> bool:
        """Loads weights into the pool; false if they are refused, until their files change."""
        signature = await asyncio.to_thread(file_signature, weights.path)
        if self._refused.get(weights) == signature:
            return False
        try:
            await self._pool.load_all(weights)
        except ManifestError as error:
            self._refused[weights] = signature
            logger.warning("weights refused", extra={"reason": str(error)})
            return False
        except (RuntimeError, ValueError, OSError) as error:
            raise RolloutStageFailed(
                f"the engine cannot load {weights.path} over the model that it was started with: "
                f"{error}"
            ) from error
        self._refused.clear()
        return True


def build_serving_runner(
    *,
    plan: StagePlan,
    tenant: str,
    label: str,
    models: LoadedStageModels,
    heartbeats: Heartbeats,
    drain_seconds: float,
) -> ServingRunner:
    """Assembles everything between the engines and the address.

    Raises: UserError when the address is open to others without any protection.
    """
    explorer = plan.config.explorer
    access = access_policy(plan, tenant)
    access.check_host()
    pool = ServingPool(
        models.policy.replicas,
        loaded=model_weights(plan.model_path),
        min_open=explorer.min_running_model_num,
    )
    return ServingRunner(
        plan=plan,
        pool=pool,
        server=ModelServer(
            is_ready=lambda: pool.num_open > 0,
            **server_parts(
                plan, label, models.policy, pool.lend, access, MediaStore(UnstoredMedia(), tenant)
            ),
        ),
        access=access,
        heartbeats=heartbeats,
        drain_seconds=drain_seconds,
    )


def access_policy(plan: StagePlan, tenant: str) -> ServingAccessPolicy:
    """Returns the policy: on loopback a key, configured or generated; elsewhere tokens.

    Raises: UserError when the file of the key cannot be used.
    """
    explorer = plan.config.explorer
    security = Credentials.from_environment()
    key_file = None
    if not security.is_on and not explorer.rollout_model.has_own_key:
        key_file = _key_file(plan)
    return ServingAccessPolicy(
        host=explorer.listen_address,
        security=security,
        key=explorer.rollout_model.api_key if key_file is None else read_or_create_key(key_file),
        tenant=tenant,
        key_file=key_file,
    )


def _key_file(plan: StagePlan) -> Path:
    if plan.served is None:
        raise UserError(
            "there is no key for the served model: give `explorer.rollout_model.api_key`"
        )
    return Path(plan.served.key_file)


class ServerParts(TypedDict):
    """Arguments of a server of a model."""

    access: ServingAccessPolicy
    port: int
    borrower: ModelBorrower
    handler: ApiHandler
    names: tuple[str, ...]
    table: ConnectionTable


def server_parts(
    plan: StagePlan,
    label: str,
    model: LoadedModel,
    lend: LendEngine,
    access: ServingAccessPolicy,
    media: MediaStore,
) -> ServerParts:
    """Builds the parts of a server of a stage's model; `media` keeps the images of requests."""
    paths = (plan.config.model.model_path, plan.model_path)
    names = tuple(dict.fromkeys(name for name in (*paths, label) if name))
    writer = ResponseWriter(
        model_path=names[0],
        tokenizer=model.tokenizer,
        parsers=model.parsers,
        template_kwargs=plan.config.model.template_kwargs,
    )
    return ServerParts(
        access=access,
        port=plan.config.explorer.proxy_port,
        borrower=ModelBorrower(
            plan=plan, lend=lend, tokenizer=model.tokenizer, names=names, media=media
        ),
        handler=ApiHandler(
            writer=writer,
            schemas=model.schemas,
            images=RequestImages(plan.config.explorer.rollout_model.allowed_media_domains),
        ),
        names=names,
        table=ConnectionTable(HttpLimits.from_open_files()),
    )
