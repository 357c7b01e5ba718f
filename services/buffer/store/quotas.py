"""Limits of what each tenant keeps in the buffer, checked in the transaction that adds to it."""

from dataclasses import dataclass

import sqlalchemy as sa

from services.buffer.settings import BufferSettings
from services.buffer.store.schema import blob, taskset, taskset_upload
from trinity.errors import QuotaExceeded
from trinity.runtime.sql import Connection

GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantQuotas:
    """The limits of one tenant.

    await quotas.check_blob(connection, "a", len(body))   # raises QuotaExceeded
    """

    blob_bytes: int = 8 * GIB
    """Parts of results that are not stored yet."""
    taskset_bytes: int = 64 * GIB
    """Tasks that clients have submitted."""
    tasksets: int = 10_000
    uploads: int = 256
    """Submissions of tasks that have begun and not ended."""

    @classmethod
    def from_settings(cls, settings: BufferSettings) -> "TenantQuotas":
        """Returns the limits that the operator set."""
        return cls(
            blob_bytes=settings.tenant_blob_bytes,
            taskset_bytes=settings.tenant_taskset_bytes,
            tasksets=settings.tenant_tasksets,
            uploads=settings.tenant_uploads,
        )

    async def check_blob(self, connection: Connection, tenant: str, num_bytes: int) -> None:
        """Raises QuotaExceeded if a tenant has no room for a blob."""
        query = sa.select(sa.func.coalesce(sa.func.sum(blob.c.size), 0)).where(
            blob.c.tenant == tenant, blob.c.body.is_not(None)
        )
        held = int(await connection.fetch_value(query) or 0)
        if held + num_bytes > self.blob_bytes:
            raise _exceeded(
                tenant, "bytes of results that wait to be stored", held, "TENANT_BLOB_BYTES"
            )

    async def check_new_upload(self, connection: Connection, tenant: str) -> None:
        """Raises QuotaExceeded if a tenant may begin no other submission of tasks."""
        own = taskset.c.tenant == tenant, taskset.c.name.is_not(None)
        num_tasksets = await _count(connection, taskset, *own)
        if num_tasksets >= self.tasksets:
            raise _exceeded(tenant, "submitted tasksets", num_tasksets, "TENANT_TASKSETS")
        open_ones = taskset_upload.c.tenant == tenant, ~taskset_upload.c.is_complete
        num_open = await _count(connection, taskset_upload, *open_ones)
        if num_open >= self.uploads:
            raise _exceeded(tenant, "submissions that have not ended", num_open, "TENANT_UPLOADS")

    async def check_tasks(self, connection: Connection, tenant: str, num_bytes: int) -> None:
        """Raises QuotaExceeded if a tenant has no room for more tasks."""
        query = sa.select(sa.func.coalesce(sa.func.sum(taskset.c.num_bytes), 0)).where(
            taskset.c.tenant == tenant
        )
        held = int(await connection.fetch_value(query) or 0)
        if held + num_bytes > self.taskset_bytes:
            raise _exceeded(tenant, "bytes of submitted tasks", held, "TENANT_TASKSET_BYTES")


async def _count(
    connection: Connection, table: sa.Table, *conditions: sa.ColumnElement[bool]
) -> int:
    query = sa.select(sa.func.count()).select_from(table).where(*conditions)
    return int(await connection.fetch_value(query) or 0)


def _exceeded(tenant: str, what: str, held: int, setting: str) -> QuotaExceeded:
    return QuotaExceeded(
        f"quota: tenant {tenant} has {held:,} {what}, and no more is taken: delete some, or have "
        f"the operator raise TRINITY_BUFFER_{setting}"
    )
