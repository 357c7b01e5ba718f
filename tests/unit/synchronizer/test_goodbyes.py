"""The waits that a member leaves when it shuts down."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import sqlalchemy as sa

from services.synchronizer.domain import Role
from services.synchronizer.members import ClosedWait, Member
from services.synchronizer.operations import Operations
from services.synchronizer.store.database import SynchronizerDatabase
from trinity.runtime.members import MemberPhase
from trinity.runtime.rpc.quotas import TenantQuota


class Database:
    """Records the statements, and answers what row a member's id is left with."""

    def __init__(self, left: uuid.UUID | None) -> None:
        self._left = left
        self.statements: list[str] = []

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator["Database"]:
        yield self

    async def execute(self, statement: sa.ClauseElement, values: Any = None) -> None:
        del values
        self.statements.append(str(statement).split("(")[0].strip())

    async def fetch_first(self, statement: sa.ClauseElement) -> uuid.UUID | None:
        del statement
        return self._left


def wait_of(member: Member) -> ClosedWait:
    return ClosedWait(
        number=1,
        owner="explorer",
        waits_for="buffer",
        reason="nothing to lease",
        waited_seconds=3.0,
        ended_seconds_ago=1.0,
        experiment_id=None,
        stage="",
        member_id=member.id,
        role=member.role,
        address=member.address,
    )


@pytest.mark.parametrize("is_own", [True, False])
async def test_only_a_member_itself_leaves_waits_under_its_id(is_own: bool) -> None:
    member = Member(
        id=uuid.uuid4(),
        role=Role.EXPLORER,
        address="",
        experiment_id=None,
        stage="",
        activity="gone",
        phase=MemberPhase.GONE,
        version=-1,
        pinned_versions=(),
        waits=(),
    )
    database = Database(left=None if is_own else member.id)
    own = Operations(
        cast(SynchronizerDatabase, database), TenantQuota(what="members", variable="", limits={})
    )
    assert await own.record_heartbeat(member, "b", [wait_of(member)])
    stored = any(text.startswith("INSERT INTO closed_wait") for text in database.statements)
    assert stored is is_own
