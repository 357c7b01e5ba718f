"""What the buffer would do without its protections."""

import asyncio
import os
import random
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import sqlalchemy as sa
from psycopg import AsyncConnection

from services.buffer.domain.results import CommitDecision
from services.buffer.domain.stage import AttemptState, CommitStatus, ExperienceState, RunState
from services.buffer.ingest.wire import decode_batch
from services.buffer.operations.feedback import FeedbackResult
from services.buffer.store import curation, tasksets
from services.buffer.store.database import of_stage
from services.buffer.store.reports import CommitReport, insert_reports
from services.buffer.store.schema import experience, payload
from services.buffer.store.segments import partition
from tests.chaos.folder import FaultsFolder
from tests.chaos.patching import Function
from trinity.runtime.sql import READ_WRITE, Connection

HEARD_SECONDS = 0.3
"""Until explorers have heard what they were told."""
FAR_AWAY = 10_000
"""Added to numbers so that they are nobody else's."""


def acknowledge_first(original: Function) -> Function:
    """Tell and acknowledge what is not stored yet."""

    async def commit(self: Any, messages: Any) -> None:
        results = [
            one for each in messages for one in decode_batch(each.subject, each.data).results
        ]
        told = [
            CommitReport(
                producer=one.producer, sequence=one.sequence, status=CommitStatus.COMMITTED
            )
            for one in results
        ]
        async with self.database.transaction() as connection:
            await insert_reports(connection, told)
        for message in messages:
            await message._client.publish(message.reply, b"+ACK")
        await asyncio.sleep(HEARD_SECONDS)
        await original(self, messages)

    return commit


def store_again(original: Function) -> Function:
    """Take a result that is known for a new one."""

    def judge(self: Any, result: Any) -> CommitDecision:
        verdict: CommitDecision = original(self, result)
        if verdict.state is not None or verdict.status is CommitStatus.REJECTED:
            return verdict
        again = replace(
            result,
            attempt=result.attempt + FAR_AWAY,
            sequence=result.sequence + FAR_AWAY,
            experiences=tuple(
                replace(one, experience_id=str(uuid.uuid4())) for one in result.experiences
            ),
        )
        return CommitDecision(result=again, status=CommitStatus.COMMITTED, state=AttemptState.WON)

    return judge


def everyone_wins(_: Function) -> Function:
    """Let every complete attempt win."""

    def decide(self: Any, result: Any) -> AttemptState:
        run = self.assignments[result.assignment_id].runs[result.run]
        run.state = RunState.WON
        return AttemptState.WON

    return decide


@asynccontextmanager
async def _another(connection: Connection) -> AsyncIterator[Connection]:
    """A transaction of its own, in another session of the same database."""
    info = connection._driver.info
    options: dict[str, Any] = {**info.get_parameters(), "password": info.password}
    async with await AsyncConnection.connect(**options, autocommit=True) as driver:
        own = Connection(driver, READ_WRITE)
        yield own
        await own.commit()


def leave_ready(original: Function) -> Function:
    """Do not note that rows are in a batch."""

    async def set_states(connection: Any, key: Any, ids: Any, state: Any, reason: str = "") -> None:
        if state is not ExperienceState.BATCHED:
            await original(connection, key, ids, state, reason)

    return set_states


def take_first(original: Function) -> Function:
    """Note that rows are in a batch before there is one, in a transaction of its own."""

    async def set_states(connection: Any, key: Any, ids: Any, state: Any, reason: str = "") -> None:
        async with _another(connection) as own:
            await original(own, key, ids, state, reason)

    return set_states


def shuffle_rows(original: Function) -> Function:
    """Make up the order of a batch anew each time it is asked for."""

    async def load_rows(*args: Any) -> list[Any]:
        rows = await original(*args)
        positions = [row.position for row in rows]
        random.shuffle(positions)
        return [replace(row, position=place) for row, place in zip(rows, positions, strict=True)]

    return load_rows


def never_tired(_: Function) -> Function:
    """Let a sample be trained again at once, and by any number of steps."""
    return lambda *_args: True


def let_pass(_: Function) -> Function:
    """Ask nobody who they are."""
    return lambda *_args: None


def need_nothing(_: Function) -> Function:
    """Take contents for needless that somebody may ask for."""

    async def needed_segments(*_args: Any) -> set[int]:
        return set()

    return needed_segments


def hear_again(_: Function) -> Function:
    """Let a selector learn from the same groups each time it draws."""

    async def mark_feedback_received(*_args: Any) -> None:
        return None

    return mark_feedback_received


BEGUN = "operators-begun"


def think_done(original: Function) -> Function:
    """Take operators for done that were begun once."""

    async def shape(self: Any, stage: Any, chain: Any, claims: Any) -> Any:
        folder = FaultsFolder.from_environment()
        begun = {line["assignment_id"] for line in folder.read(BEGUN)}
        if any(claim.assignment_id in begun for claim in claims):
            chain = replace(chain, operators=())
        for claim in claims:
            folder.log(BEGUN, {"assignment_id": claim.assignment_id})
        return await original(self, stage, chain, claims)

    return shape


def own_chance(original: Function) -> Function:
    """Let chance be that of this process."""
    return lambda seeds, number: original((*seeds, os.getpid()), number)


def rank_anew(original: Function) -> Function:
    """Have no order from one draw to the next."""

    async def ranked_rows(connection: Any, key: Any, taskset: str, places: Any) -> list[int]:
        count = len(places)
        rows: list[int] = await original(connection, key, taskset, range(3 * count))
        return random.sample(rows, count)

    return ranked_rows


def promise_rewards(original: Function) -> Function:
    """Say the first time that rewards are set which are not."""
    promised: set[str] = set()

    async def give_feedback(connection: Any, key: Any, feedback: Any, write: Any, why: Any) -> Any:
        ids = {one.experience_id for one in feedback}
        if ids <= promised:
            return await original(connection, key, feedback, write, why)
        promised.update(ids)
        return FeedbackResult(num_set=len(ids))

    return give_feedback


def score_instead(original: Function) -> Function:
    """Leave samples in that were to be excluded."""

    async def exclude(connection: Any, key: Any, rows: Any, reason: str) -> int:
        number: int = await original(connection, key, rows, reason)
        ids = [row.experience_id for row in rows]
        query = "UPDATE experience SET state = 'raw', reason = '', reward = 0 WHERE "
        chosen = sa.text(f"{query} experience_id = ANY(CAST(:ids AS uuid[]))")
        await connection.execute(chosen, {"ids": ids})
        return number

    return exclude


def leave_out(original: Function) -> Function:
    """Say that samples are put back which stay excluded."""

    async def restore_excluded(connection: Any, stage: Any, rows: Any) -> int:
        await original(connection, stage, rows[:0])
        return len(rows)

    return restore_excluded


def turn_around(original: Function) -> Function:
    """Store what a pipeline has ordered from its end on."""

    async def copy_rows(
        connection: Any, tenant: str, taskset_id: str, rows: Any, **given: Any
    ) -> int:
        ordered = b"".join([lines async for lines in rows]).splitlines(keepends=True)

        async def turned() -> AsyncGenerator[bytes]:
            yield b"".join(reversed(ordered))

        num_rows: int = await original(connection, tenant, taskset_id, turned(), **given)
        return num_rows

    return copy_rows


def take_the_first(original: Function) -> Function:
    """Take the first rows of another run again and again."""

    async def explored_rows(connection: Any, stage: Any) -> Any:
        return await original(connection, replace(stage, line=-1))

    return explored_rows


def keep_content(original: Function) -> Function:
    """Say that contents are deleted which are there."""

    async def delete_content(connection: Any, key: Any, rows: Any) -> int:
        async def all_of_them(*_: object) -> set[int]:
            return {row.segment_id for row in rows}

        with patch.object(curation, "retired_segments", all_of_them):
            number: int = await original(connection, key, rows)
        return number

    return delete_content


def keep_both(original: Function) -> Function:
    """Leave the content that came without a reward beside the one that has it."""

    async def store_reward(
        connection: Any, key: Any, experience_id: str, *args: Any, **more: Any
    ) -> None:
        held = (experience.c.experience_id == experience_id, of_stage(experience, key))
        name = partition(
            await connection.fetch_value(sa.select(experience.c.segment_id).where(*held))
        )
        columns = ", ".join(one.name for one in payload.c if one.name != "payload_id")
        await connection.execute(
            sa.text(
                f"INSERT INTO {name} (payload_id, {columns}) SELECT gen_random_uuid(), {columns} "
                f"FROM {name} WHERE payload_id = '{experience_id}'"
            )
        )
        await original(connection, key, experience_id, *args, **more)

    return store_reward


def forget_count(_: Function) -> Function:
    """Leave something undone that belongs to the same transaction."""

    async def do_nothing(*_args: Any, **_more: Any) -> None:
        return None

    return do_nothing


def tell_first(original: Function) -> Function:
    """Tell of what is not done yet, in a transaction of its own."""

    async def log_notice(connection: Any, key: Any, text: str) -> None:
        async with _another(connection) as own:
            await original(own, key, text)

    return log_notice


def delete_in_parts(original: Function) -> Function:
    """Delete a taskset for good before its rows."""

    async def delete_taskset(connection: Any, tenant: str, taskset_id: str) -> None:
        with patch.object(tasksets, "delete_tasks", forget_count(original)):
            await original(connection, tenant, taskset_id)
        await connection.execute(sa.text("COMMIT"))
        await connection.execute(sa.text("BEGIN"))
        await connection.flush()
        await original(connection, tenant, taskset_id)

    return delete_taskset


def shuffle_items(original: Function) -> Function:
    """Copy a stored batch in any order."""

    async def load_items(*args: Any, **more: Any) -> list[Any]:
        items = await original(*args, **more)
        random.shuffle(items)
        return list(items)

    return load_items


def know_nothing(_: Function) -> Function:
    """Take a file of experiences for an empty one."""
    return lambda *_: {}


def use_nothing(_: Function) -> Function:
    """Store samples without the use of their images."""

    async def use_media(*_: Any) -> None:
        pass

    return use_media
