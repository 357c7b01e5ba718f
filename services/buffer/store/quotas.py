"""Quotas on the contents of each tenant, checked in the transaction that adds them."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import sqlalchemy as sa

from services.buffer.domain.turns import ReceivedTurn
from services.buffer.settings import BufferSettings
from services.buffer.store.database import count_rows, seconds_from_now
from services.buffer.store.media_schema import media
from services.buffer.store.schema import STAGE_KEY, blob, segment, taskset, taskset_upload
from services.buffer.store.session_schema import session
from services.buffer.store.turns import UNCOMMITTED_SECONDS
from trinity.errors import QuotaExceeded
from trinity.runtime.rpc.quotas import QuotaUse, TenantQuota
from trinity.runtime.sql import Connection

DELETE_TASKSETS = "delete some (`trinity taskset delete`)"
COUNTED_SECONDS = 5.0
"""Time between two counts of the bytes in runs with clients; the turns in between are added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferQuotas:
    """The quotas of all tenants; each check raises QuotaExceeded, which names use and limit.

    await quotas.check_blob(connection, "a", sha256, len(body))

    Concurrent transactions do not see one another: together they may exceed a quota by the size of
    their contents. So may turns that other buffers store between two counts.
    """

    blob_bytes: TenantQuota
    taskset_bytes: TenantQuota
    tasksets: TenantQuota
    uploads: TenantQuota
    upload_memory: QuotaUse
    media_bytes: TenantQuota
    sessions: TenantQuota
    session_bytes: TenantQuota
    _held: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By tenant: bytes of runs with clients, and until when this counts."""

    @classmethod
    def from_settings(cls, settings: BufferSettings) -> Self:
        """Returns the quotas that the operator set."""
        quota = settings.quota
        return cls(
            blob_bytes=quota(
                "tenant_blob_bytes",
                "bytes of results that wait to be stored",
                remedy="wait until some are stored",
            ),
            taskset_bytes=quota(
                "tenant_taskset_bytes", "bytes of submitted tasks", remedy=DELETE_TASKSETS
            ),
            tasksets=quota("tenant_tasksets", "submitted tasksets", remedy=DELETE_TASKSETS),
            uploads=quota(
                "tenant_uploads",
                "submissions that have not ended",
                remedy=f"end some, or {DELETE_TASKSETS}",
            ),
            media_bytes=quota(
                "tenant_media_bytes", "bytes of images", remedy=f"end runs, or {DELETE_TASKSETS}"
            ),
            sessions=quota(
                "tenant_sessions",
                "sessions of clients",
                remedy="go on with one of them by its name, or wait until some are a week old",
            ),
            session_bytes=quota(
                "tenant_session_bytes",
                "bytes in runs with clients",
                remedy="end some, or lower their `buffer.keep_steps`",
            ),
            upload_memory=QuotaUse(
                quota(
                    "tenant_upload_memory_bytes",
                    "bytes of results that arrive",
                    remedy="try again after a pause",
                )
            ),
        )

    async def check_blob(
        self, connection: Connection, tenant: str, sha256: bytes, num_bytes: int
    ) -> None:
        """Checks that the tenant has room for a blob; a blob that it already has needs no room."""
        waiting = sa.and_(blob.c.tenant == tenant, blob.c.body.is_not(None))
        query = _total(blob.c.size).where(waiting, blob.c.sha256 != sha256)
        held = int(await connection.fetch_value(query) or 0)
        self.blob_bytes.check(tenant, used=held, more=num_bytes)

    async def check_media(
        self, connection: Connection, tenant: str, sha256: bytes, num_bytes: int
    ) -> None:
        """Checks that the tenant has room for an image; one that it already has needs no room."""
        others = sa.and_(media.c.tenant == tenant, media.c.number == 0, media.c.sha256 != sha256)
        query = _total(media.c.size).where(others)
        held = int(await connection.fetch_value(query) or 0)
        self.media_bytes.check(tenant, used=held, more=num_bytes)

    async def check_new_taskset(self, connection: Connection, tenant: str) -> None:
        """Checks that the tenant may have the taskset that this transaction has inserted."""
        own = taskset.c.tenant == tenant, taskset.c.name.is_not(None)
        num_tasksets = await count_rows(connection, taskset, *own)
        self.tasksets.check(tenant, used=num_tasksets - 1, more=1)

    async def check_new_upload(self, connection: Connection, tenant: str) -> None:
        """Checks that the tenant may begin another submission of tasks."""
        own = taskset_upload.c.tenant == tenant, ~taskset_upload.c.is_complete
        num_open = await count_rows(connection, taskset_upload, *own)
        self.uploads.check(tenant, used=num_open, more=1)

    async def check_new_session(self, connection: Connection, tenant: str) -> None:
        """Checks that the tenant may have the client's session that this transaction has opened.

        Those that were opened before do not count: calls that they have not committed are expired.
        """
        of_clients = sa.and_(session.c.tenant == tenant, session.c.client.is_not(None))
        is_young = session.c.opened_at > seconds_from_now(-UNCOMMITTED_SECONDS)
        num_open = await count_rows(connection, session, of_clients, is_young)
        self.sessions.check(tenant, used=num_open - 1, more=1)
        held = await self._session_bytes_of(connection, tenant)
        self.session_bytes.check(tenant, used=held, more=1)

    async def marked(
        self, connection: Connection, turns: Sequence[ReceivedTurn]
    ) -> list[ReceivedTurn]:
        """Returns turns; those of clients have a refusal if their tenant has no room for them."""
        sizes = Counter[str]()
        for turn in turns:
            if turn.assignment_id is None:
                sizes[turn.key.tenant] += len(turn.body)
        refusals: dict[str, str] = {}
        for tenant, num_bytes in sizes.items():
            until, held = self._held.get(tenant, (0.0, 0))
            if time.monotonic() >= until:
                held = await self._session_bytes_of(connection, tenant)
                until = time.monotonic() + COUNTED_SECONDS
            try:
                self.session_bytes.check(tenant, used=held, more=num_bytes)
            except QuotaExceeded as error:
                refusals[tenant] = str(error)
            else:
                held += num_bytes
            self._held[tenant] = until, held
        return [replace(turn, refusal=refusals.get(turn.key.tenant, "")) for turn in turns]

    async def _session_bytes_of(self, connection: Connection, tenant: str) -> int:
        """Returns what runs with clients hold; 0 where that is not limited."""
        if self.session_bytes.limit_of(tenant) is None:
            return 0
        of_clients = sa.and_(session.c.tenant == tenant, session.c.client.is_not(None))
        same_stage = sa.and_(*(session.c[name] == segment.c[name] for name in STAGE_KEY))
        query = _total(segment.c.num_bytes).where(
            segment.c.removed_at.is_(None), sa.exists().where(of_clients, same_stage)
        )
        return int(await connection.fetch_value(query) or 0)

    async def check_tasks(self, connection: Connection, tenant: str, num_bytes: int) -> None:
        """Checks that the tenant has room for more tasks."""
        query = _total(taskset.c.num_bytes).where(taskset.c.tenant == tenant)
        held = int(await connection.fetch_value(query) or 0)
        self.taskset_bytes.check(tenant, used=held, more=num_bytes)


def _total(column: sa.ColumnElement[int]) -> sa.Select[tuple[int]]:
    return sa.select(sa.func.coalesce(sa.func.sum(column), 0))
