"""Converts stored samples to protobuf and filters from it, and reads samples in pages."""

import base64
import dataclasses
import json
import math
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from services.buffer.domain.stage import AssignmentKind, ExperienceState
from services.buffer.domain.tasks import SampleCursor, SampleFilter
from services.buffer.operations.feedback import DelayedReward
from services.buffer.servicer.common import by_size
from services.buffer.servicer.convert import (
    check_max_items,
    parse_metrics,
    parse_name,
    parse_text,
    parse_uuid,
    to_message,
)
from services.buffer.store.batches import BatchUse
from services.buffer.store.curation import RecordedChange
from services.buffer.store.database import BufferDatabase
from services.buffer.store.experiences import StateCount, find_bodies
from services.buffer.store.queries import (
    MOST_GROUPS_AT_ONCE,
    PageRequest,
    StoredExperience,
    list_page,
    sizes_of,
    steps_of_versions,
)
from services.buffer.store.turns import StoredTurn
from trinity.api.v1 import buffer_pb2, experience_pb2, query_pb2
from trinity.data.codec import FINISH_REASON_NAMES, FINISH_REASONS
from trinity.errors import InvalidRequest, TooLarge
from trinity.runtime.json_values import parse_untrusted
from trinity.runtime.origin import split_digests
from trinity.types import LARGEST_REWARD, FinishReason, StageKey

MAX_FILTER_TEXT = 1_000
MOST = 2**62
"""Larger than any number in use, and small enough for the database."""
STATES = {
    state: cast(
        query_pb2.ExperienceState, query_pb2.ExperienceState.Value(f"EXPERIENCE_STATE_{state.name}")
    )
    for state in ExperienceState
}
STATE_OF = {code: state for state, code in STATES.items()}
KINDS = {
    buffer_pb2.ASSIGNMENT_KIND_UNSPECIFIED: AssignmentKind.TRAIN,
    buffer_pb2.ASSIGNMENT_KIND_TRAIN: AssignmentKind.TRAIN,
    buffer_pb2.ASSIGNMENT_KIND_EVAL: AssignmentKind.EVAL,
}
OPTIONAL_NUMBERS = tuple(
    field.name for field in query_pb2.ExperienceFilter.DESCRIPTOR.fields if field.has_presence
)
ROWS_PER_PAGE = 256
MOST_ROWS_PER_PAGE = 2_048
"""Samples that a search for a rare text looks at in one page."""


def parse_filter(message: query_pb2.ExperienceFilter) -> SampleFilter:
    """Converts a filter.

    Raises: InvalidRequest that names the invalid condition, TooLarge when its text is too long.
    """
    if message.kind not in KINDS or any(state not in STATE_OF for state in message.states):
        raise InvalidRequest("filter: there is no such kind or state")
    numbers = {name: getattr(message, name) for name in OPTIONAL_NUMBERS if message.HasField(name)}
    for name, value in numbers.items():
        if not math.isfinite(value) or abs(value) > MOST:
            raise InvalidRequest(f"filter.{name} is {value}, which is no number to compare with")
    if "train_step_last" in numbers and "train_step" not in numbers:
        raise InvalidRequest("filter.train_step_last ends a range that has no train_step")
    if len(message.text) > MAX_FILTER_TEXT:
        raise TooLarge(f"filter.text has more than {MAX_FILTER_TEXT} characters")
    ids = check_max_items(message.experience_ids, "filter.experience_ids")
    return SampleFilter(
        kind=KINDS[message.kind],
        states=tuple(STATE_OF[state] for state in message.states),
        taskset=parse_name(message.taskset, "filter.taskset") if message.taskset else "",
        text=parse_text(message.text, "filter.text"),
        experience_ids=tuple(
            parse_uuid(experience_id, "filter.experience_ids") for experience_id in ids
        ),
        finish_reason=FINISH_REASON_NAMES.get(message.finish_reason, ""),
        **numbers,
    )


def cursor_to_text(cursor: SampleCursor) -> str:
    """Encodes a cursor as an opaque text that a client passes back to continue."""
    fields = json.dumps(dataclasses.astuple(cursor))
    return base64.urlsafe_b64encode(fields.encode()).decode()


def parse_cursor(text: str) -> SampleCursor | None:
    """Decodes a cursor; None if empty.

    Raises: InvalidRequest when it was not made by `cursor_to_text`.
    """
    if not text:
        return None
    try:
        place: Any = parse_untrusted(base64.urlsafe_b64decode(text.encode()))
        *numbers, suffix, revision, experience_id = place
        explore_step, position, run, step = (_number(number) for number in numbers)
        if not isinstance(suffix, str):
            raise TypeError("not a suffix")
        return SampleCursor(
            explore_step=explore_step,
            position=position,
            run=run,
            step=step,
            suffix=parse_text(suffix, "cursor"),
            revision=_number(revision),
            experience_id=str(uuid.UUID(experience_id)),
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidRequest("cursor: give back one that came with a page, as it was") from error


def _number(value: object) -> int:
    if type(value) is not int or abs(value) > MOST:  # true is an int too
        raise ValueError("not a number of a place")
    return value


def turn_to_proto(stored: StoredTurn, body: bytes) -> experience_pb2.SessionTurn:
    """Converts a turn of a session."""
    return experience_pb2.SessionTurn(
        id=stored.turn_id,
        parent_id=stored.parent_id or "",
        prompt_sha256=stored.prompt_sha256,
        ordinal=stored.ordinal,
        payload=body,
        call_id=stored.call_id or "",
        is_rewarded=stored.reward is not None,
    )


def use_to_proto(use: BatchUse) -> query_pb2.BatchUse:
    """Converts a use in a batch to protobuf."""
    tokens = use.tokens and to_message(buffer_pb2.TokenValues, use.tokens)
    return to_message(query_pb2.BatchUse, use, tokens=tokens)


def record_to_proto(
    stage: str, row: StoredExperience, uses: list[BatchUse], body: bytes | None, removed: str = ""
) -> query_pb2.ExperienceRecord:
    """Converts a stored sample to protobuf, with its content or the reason why it is removed."""
    eid = to_message(experience_pb2.Eid, row.cursor, stage=stage, attempt=row.attempt)
    record = to_message(
        query_pb2.ExperienceRecord,
        row,
        id=row.experience_id,
        parent_id=row.parent_id or "",
        eid=eid,
        state=STATES[row.state],
        finish_reason=FINISH_REASONS[FinishReason(row.finish_reason)],
        revision=row.cursor.revision,
        unix_millis=int(row.created_at.timestamp() * 1000),
        turn_sha256=split_digests(row.turn_sha256 or b""),
        uses=[use_to_proto(use) for use in uses],
        content_removed="" if body is not None else removed,
    )
    if body is not None:
        record.content.MergeFromString(body)
    return record


def count_to_proto(count: StateCount) -> query_pb2.StateCount:
    """Converts a count to protobuf."""
    return query_pb2.StateCount(state=STATES[count.state], reason=count.reason, count=count.number)


def sample_change_to_proto(change: RecordedChange) -> query_pb2.SampleChange:
    """Converts a person's change to a sample."""
    millis = int(change.at.timestamp() * 1000)
    return to_message(query_pb2.SampleChange, change, unix_millis=millis)


def parse_feedback(message: query_pb2.Feedback) -> DelayedReward:
    """Converts feedback.

    Raises: InvalidRequest when the id is not a UUID or a number cannot be trained on.
    """
    numbers = [message.reward, *message.reward_parts.values()]
    if not all(abs(number) <= LARGEST_REWARD for number in numbers):
        raise InvalidRequest(
            f"feedback.reward of {message.experience_id} is not a finite number, of "
            f"{LARGEST_REWARD:g} at most"
        )
    return DelayedReward(
        experience_id=parse_uuid(message.experience_id, "feedback.experience_id"),
        reward=message.reward,
        reward_parts=parse_metrics(message.reward_parts),
    )


def with_reward(body: bytes, feedback: DelayedReward) -> bytes:
    """Returns the serialized sample with the reward set."""
    message = experience_pb2.Experience.FromString(body)
    message.reward = feedback.reward
    message.reward_parts.update(feedback.reward_parts)
    message.reward_state = experience_pb2.REWARD_STATE_FINAL
    message.reward_revision += 1
    return message.SerializeToString(deterministic=True)


def contains_text(body: bytes, text: str) -> bool:
    """Returns whether a prompt or response of a stored sample contains the text."""
    message = experience_pb2.Experience.FromString(body)
    sides = (message.sequence, message.pair.chosen, message.pair.rejected)
    return any(text in side.prompt_text or text in side.response_text for side in sides)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePage:
    """Consecutive samples, with their contents if requested and still there."""

    rows: Sequence[StoredExperience]
    bodies: dict[str, bytes]
    end: SampleCursor
    """The place to continue from: after the last sample, or the last one examined."""
    num_examined: int = 0
    """Samples that a search for a text has looked at, told once for each look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePages:
    """Reads all samples that match a filter, with bounded memory."""

    database: BufferDatabase
    key: StageKey
    wanted: SampleFilter
    with_content: bool
    latest_first: bool = False

    async def read_pages(self, after: SampleCursor | None = None) -> AsyncIterator[SamplePage]:
        """Yields the samples in order, starting after a place.

        Each page that is not full is followed by a look into twice as many groups, or where only
        the text was missing at twice as many samples, so that a search for rare ones takes few
        round trips. Where weights are named, it first finds out which explore steps have any.
        """
        look = PageRequest(
            key=self.key,
            wanted=self.wanted,
            after=after,
            size=ROWS_PER_PAGE,
            latest_first=self.latest_first,
        )
        while True:
            async with self.database.transaction() as connection:
                page = await list_page(connection, look)
            num_found = 0
            async for part in self._parts_of(page.rows):
                num_found += len(part.rows)
                yield part
            if page.end is None:
                return
            if self.wanted.text:
                yield SamplePage(rows=(), bodies={}, end=page.end, num_examined=page.num_examined)
            look = replace(look, after=page.end)
            if num_found < ROWS_PER_PAGE:
                is_full = page.num_examined == look.size
                wider = await self._wider(look, is_full=is_full)
                if wider is None:
                    return
                look = wider

    async def _wider(self, look: PageRequest, *, is_full: bool) -> PageRequest | None:
        """Returns a look into more at once; None where no sample has the wanted weights."""
        wanted = self.wanted
        names_weights = wanted.version_min is not None or wanted.version_max is not None
        if look.steps is None and names_weights:
            async with self.database.transaction() as connection:
                steps = await steps_of_versions(connection, self.key, wanted)
            return None if steps is None else replace(look, steps=steps)
        if is_full:
            return replace(look, size=min(2 * look.size, MOST_ROWS_PER_PAGE))
        return replace(look, num_groups=min(2 * look.num_groups, MOST_GROUPS_AT_ONCE))

    async def _parts_of(self, rows: Sequence[StoredExperience]) -> AsyncIterator[SamplePage]:
        if not rows:
            return
        if not self.with_content and not self.wanted.text:
            yield SamplePage(rows=rows, bodies={}, end=rows[-1].cursor)
            return
        async with self.database.transaction() as connection:
            sizes = await sizes_of(connection, self.key, rows)
        if self.wanted.text:
            rows = [row for row in rows if row.experience_id in sizes]
        for part in by_size(rows, lambda row: sizes.get(row.experience_id, 0)):
            yield await self._read(part, sizes)

    async def _read(self, rows: Sequence[StoredExperience], sizes: dict[str, int]) -> SamplePage:
        ids = [row.experience_id for row in rows if row.experience_id in sizes]
        async with self.database.transaction() as connection:
            bodies = await find_bodies(connection, self.key, ids)
        end = rows[-1].cursor
        if self.wanted.text:
            own = {
                experience_id: body
                for experience_id, body in bodies.items()
                if contains_text(body, self.wanted.text)
            }
            rows = [row for row in rows if row.experience_id in own]
        return SamplePage(rows=rows, bodies=bodies if self.with_content else {}, end=end)
