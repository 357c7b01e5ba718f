"""Extracts the feature columns that selectors use, once per taskset content."""

from collections.abc import Sequence

from services.buffer.background import BackgroundJobs, Job
from services.buffer.needed_types import NeededTaskset
from services.buffer.store.database import Database, notify, tasksets_topic
from services.buffer.store.features import known_features, read_features, store_features
from services.buffer.store.stages import StageTaskset
from trinity.errors import PreconditionFailed


class FeatureLibrary:
    """Finds stored features, and starts to read missing ones."""

    def __init__(self, *, database: Database, jobs: BackgroundJobs) -> None:
        self._database = database
        self._jobs = jobs

    async def awaited(
        self, tenant: str, needed: Sequence[NeededTaskset], stored: Sequence[StageTaskset]
    ) -> list[str]:
        """Returns which columns of these tasksets are still being read.

        Raises: PreconditionFailed that names the first row without a number in such a column.
        """
        by_name = {taskset.name: taskset for taskset in stored}
        waits = []
        for taskset in needed:
            if taskset.feature_keys and taskset.name in by_name:
                waits += await self._awaited(tenant, by_name[taskset.name], taskset.feature_keys)
        return waits

    async def _awaited(self, tenant: str, taskset: StageTaskset, names: Sequence[str]) -> list[str]:
        async with self._database.transaction() as connection:
            known = await known_features(connection, tenant, taskset.taskset_id, names)
        missing = [name for name in names if name not in known]
        for name in missing:
            self._begin(tenant, taskset, name)
        return [f"column {name} of taskset {taskset.name} is being read" for name in missing]

    def _begin(self, tenant: str, taskset: StageTaskset, name: str) -> None:
        async def work(_: Job) -> None:
            async with self._database.transaction() as connection:
                try:
                    numbers = await read_features(
                        connection, tenant, taskset.taskset_id, taskset.num_rows, name
                    )
                except PreconditionFailed as error:
                    raise PreconditionFailed(f"taskset {taskset.name}, {error}") from error
                await store_features(connection, tenant, taskset.taskset_id, name, numbers)
                await notify(connection, tasksets_topic(tenant))

        self._jobs.ask(
            (tenant, taskset.taskset_id, name),
            work,
            name=f"taskset {taskset.name}",
            reason=f"to read column {name} of taskset {taskset.name}",
        )
