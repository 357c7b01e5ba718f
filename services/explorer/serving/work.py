"""Serves a model with the newest weights that its run has published."""

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from services.explorer.retry import RolloutStageFailed
from services.explorer.serving.access import ServingAccessPolicy
from services.explorer.serving.pool import ServingPool
from services.explorer.serving.server import ModelServer
from services.explorer.types import ExplorerStopped, WeightsId, WeightsVersion
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import ManifestError
from trinity.launch.messages import SERVING
from trinity.runtime.presence import Heartbeats
from trinity.weights.manifest import MANIFEST_NAME, Manifest

logger = logging.getLogger(__name__)


PLAN_FILE = "config.json"
"""The plan that the run was started with, which names its stages in order."""
WEIGHTS_DIRECTORY = re.compile(r"v\d+-\d+")
CHECK_SECONDS = 1.0
"""Interval of the checks for a dead engine."""


def newest_weights(job_dir: Path) -> WeightsVersion | None:
    """Returns the latest version of the latest incarnation in the last stage that has any.

    Only complete directories have such names; those removed meanwhile are skipped.
    """
    for stage in reversed(_stages(job_dir)):
        found = list(_published(job_dir / "stages" / stage / "weights"))
        if found:
            return max(found, key=lambda weights: (weights.id.incarnation, weights.id.version))
    return None


def _stages(job_dir: Path) -> list[str]:
    try:
        plan = json.loads((job_dir / PLAN_FILE).read_bytes())
    except FileNotFoundError:
        return []
    return [str(stage["name"]) for stage in plan["stages"]]


def _published(folder: Path) -> Iterator[WeightsVersion]:
    for path in folder.glob("v*-*") if folder.is_dir() else ():
        if not WEIGHTS_DIRECTORY.fullmatch(path.name):
            continue
        try:
            content = (path / MANIFEST_NAME).read_bytes()
            manifest = Manifest.model_validate_json(content)
        except (OSError, ValidationError):
            continue
        yield WeightsVersion(
            id=WeightsId(version=manifest.step, incarnation=manifest.incarnation),
            path=path,
            manifest_sha256=hashlib.sha256(content).digest(),
            weights_sha256=bytes.fromhex(manifest.weights_sha256),
        )


class ServingRunner:
    """Serves the model and looks for newer weights at the plan's interval.

    Weights that cannot be read are tried again at the next look.
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

    async def run_stage(self) -> ExplorerStopped:
        """Serves until `stop_taking_work` is called or the task is cancelled.

        Raises: UserError when the address is not available, RolloutStageFailed for weights that the
        engine cannot load, EngineDied.
        """
        await self._load_newest()
        async with self._server.open(self._drain_seconds):
            key = "" if self._access.key_file is None else f", key in {self._access.key_file}"
            self._heartbeats.set_activity(f"{SERVING}{self._server.address}{key}")
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
            self._access.renew_certificate()
            await self._load_newest()

    async def _poll_engines(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self._pool.check_engines_alive()

    async def _load_newest(self) -> None:
        """Loads the newest weights; if they are removed meanwhile, those that are newest then."""
        refused: WeightsVersion | None = None
        while (newest := await self._newest()) not in (None, refused):
            assert newest is not None
            if self._pool.is_loaded_everywhere(newest) or await self._load(newest):
                break
            refused = newest
        self._heartbeats.set_version(self._pool.oldest_weights.id.version)

    async def _newest(self) -> WeightsVersion | None:
        job_dir = self._job_dir
        return None if job_dir is None else await asyncio.to_thread(newest_weights, job_dir)

    async def _load(self, newest: WeightsVersion) -> bool:
        """Loads weights into the pool; returns false if they are refused."""
        try:
            await self._pool.load_all(newest)
        except ManifestError as error:
            logger.warning("weights refused", extra={"reason": str(error)})
            return False
        except (RuntimeError, ValueError, OSError) as error:
            raise RolloutStageFailed(
                f"the engine cannot load {newest.path} over the model that it was started with: "
                f"{error}"
            ) from error
        return True
