"""Experiences of a run as pages show them: rows, groups, conversations, one in full."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.data.codec import blob_from_proto, experience_from_proto, sequence_from_proto
from trinity.data.conversations import IMAGE
from trinity.data.samples import STREAM_SECONDS, finish_reason_name, samples, state_name
from trinity.errors import UserError
from trinity.inspect.session_tree import SessionTree, read_session
from trinity.inspect.tables import versions
from trinity.run.conditions import parse_conditions
from trinity.runtime.rpc.errors import answer_of, translate_rpc_errors
from trinity.runtime.rpc.limits import CALL_SECONDS
from trinity.studio.connection import OpenRun
from trinity.studio.plain_text import beginning_of, cut_text
from trinity.types import BlobRef, Experience, IntArray, Pair, RoleSpan
from trinity.types import Sequence as TokenSequence

GROUP_ROWS = 1_000
"""Samples of a task's group that are read: each turn of a conversation is one."""
MAX_COUNTED, COUNT_SECONDS = 2_000, 0.3
"""Counting ends where there are more, or after this time."""
LOOK_AT = 10_000
"""Experiences that one look for a text goes through, from the newest on: about half a second."""
MAX_CONDITIONS_CHARS = 20_000
MAX_PREVIEW_CHARS = 120
MAX_TEXT_CHARS = 200_000
NOT_RECORDED = "not recorded"


ASSISTANT, POLICY, TEMPLATE = "assistant", "policy", "template"
IMAGE_MARK = "<|image_pad|>"
"""Stands in a text for each token of an image, in all families."""
_IMAGE_MARKS = re.compile(f"(?:{re.escape(IMAGE_MARK)})+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTokens:
    """The tokens of a sample, and the messages that its chat template made of them."""

    tokens: IntArray
    prompt_length: int
    spans: tuple[RoleSpan, ...]

    def slice_of(self, span: RoleSpan) -> IntArray:
        """Returns the tokens of a span."""
        return self.tokens[span.start : span.end]


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """One message of a conversation; its text is untrusted."""

    role: str
    num_tokens: int
    text: str
    images: tuple[BlobRef, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperienceRow:
    """One experience as a line of a table; texts are untrusted."""

    id: str
    task: str
    taskset: str
    task_index: int
    explore_step: int
    position: int
    run: int
    attempt: int
    turn: int
    state: str
    reason: str
    reward: float | None
    shaped_reward: float | None
    """What an operator made of it, if one did."""
    advantage: float | None
    versions: str
    num_tokens: int
    response_length: int
    end: str
    train_steps: tuple[int, ...]
    prompt: str
    response: str
    content: TurnTokens | None = field(default=None, compare=False, repr=False)
    """None where the content is gone, or its roles were not recorded."""
    images: tuple[BlobRef, ...] = ()

    @property
    def preview(self) -> str:
        """The beginning of the response in one line."""
        return beginning_of(self.response, MAX_PREVIEW_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperiencePage:
    """Some rows, and whether there are more."""

    rows: tuple[ExperienceRow, ...]
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeExperience:
    """One experience with its arrays; `sample` is None where its content is gone."""

    row: ExperienceRow
    sample: Experience | None
    run_seconds: float
    metrics: dict[str, float]
    uses: tuple[query_pb2.BatchUse, ...]
    changes: tuple[query_pb2.SampleChange, ...] = ()
    """What people did to it, latest first."""
    why_no_content: str = ""
    session: SessionTree | None = None
    """The calls of its run over an address, if there were any."""

    @property
    def sequence(self) -> TokenSequence | None:
        """The response, or the chosen one of a pair."""
        if self.sample is None:
            return None
        body = self.sample.body
        return body.chosen if isinstance(body, Pair) else body


def split_conditions(words: str) -> list[str]:
    """Splits conditions at blanks before a name and `=`, so that texts may have blanks in them.

    Raises: UserError if they are too long.
    """
    if len(words) > MAX_CONDITIONS_CHARS:
        raise UserError(
            f"the conditions have {len(words):,} characters: give at most {MAX_CONDITIONS_CHARS:,}"
        )
    found: list[list[str]] = []
    for word in words.split():
        name = word.partition("=")[0]
        if found and ("=" not in word or not name.isidentifier()):
            found[-1].append(word)
        else:
            found.append([word])
    return [" ".join(condition) for condition in found]


async def list_experiences(
    opened: OpenRun,
    stage: buffer_pb2.StageKey,
    conditions: Iterable[str],
    *,
    page: int = 0,
    page_rows: int,
) -> ExperiencePage:
    """Returns a page of the experiences that satisfy conditions as `trinity view` takes them.

    Raises: UserError naming a condition that cannot be read; TrinityError.
    """
    wanted = parse_conditions(conditions)
    first = page * page_rows
    with translate_rpc_errors():
        records = [
            record
            async for record in samples(
                opened.queries,
                stage,
                wanted,
                limit=first + page_rows + 1,
                latest_first=True,
                with_content=True,
            )
        ]
    found = records[first:]
    return ExperiencePage(
        rows=tuple(map(experience_row, found[:page_rows])), has_more=len(found) > page_rows
    )


@dataclass(frozen=True, slots=True)
class Counted:
    """A number of experiences; there are more, if not all were counted."""

    number: int
    is_all: bool


async def count_experiences(
    opened: OpenRun, stage: buffer_pb2.StageKey, conditions: Iterable[str]
) -> Counted:
    """Counts the experiences that satisfy conditions, for a moment.

    Raises: UserError naming a condition that cannot be read; TrinityError.
    """
    request = query_pb2.ListExperiencesRequest(
        key=stage, filter=parse_conditions(conditions), latest_first=True, limit=MAX_COUNTED + 1
    )
    number, until = 0, time.monotonic() + COUNT_SECONDS
    call = opened.queries.ListExperiences(request, timeout=CALL_SECONDS)
    with translate_rpc_errors():
        async for part in call:
            number += len(part.experiences)
            if time.monotonic() > until:
                call.cancel()
                return Counted(number, is_all=False)
    return Counted(min(number, MAX_COUNTED), is_all=number <= MAX_COUNTED)


@dataclass(slots=True, kw_only=True)
class TextSearch:
    """A search and its results so far, newest first; `go_on` continues it.

    search = TextSearch(conditions=("text=answer",))
    while not search.is_done and len(search.rows) < 50:
        await search.go_on(opened, stage, wanted=50)
    """

    conditions: tuple[str, ...]
    rows: list[ExperienceRow] = field(default_factory=list)
    num_examined: int = 0
    is_done: bool = False
    """True once the oldest experience was looked at."""
    _cursor: str = ""

    async def go_on(self, opened: OpenRun, stage: buffer_pb2.StageKey, *, wanted: int) -> None:
        """Looks at some more experiences, or fewer if `wanted` are found.

        Raises: UserError naming a condition that cannot be read; TrinityError.
        """
        num_missing = wanted - len(self.rows)
        if self.is_done or num_missing <= 0:
            return
        request = query_pb2.ListExperiencesRequest(
            key=stage,
            filter=parse_conditions(self.conditions),
            limit=num_missing,
            latest_first=True,
            with_content=True,
            cursor=self._cursor,
        )
        until = self.num_examined + LOOK_AT
        call = opened.queries.ListExperiences(request, timeout=STREAM_SECONDS)
        with translate_rpc_errors():
            async for part in call:
                self.rows.extend(map(experience_row, part.experiences))
                self.num_examined += part.num_examined
                self._cursor = part.cursor
                if self.num_examined >= until:
                    call.cancel()
                    return
        self.is_done = len(self.rows) < wanted


def names_a_text(conditions: Sequence[str]) -> bool:
    """Returns true if contents have to be read to know which experiences satisfy the conditions."""
    return any(word.startswith("text=") for word in conditions)


async def group_of(
    opened: OpenRun, stage: buffer_pb2.StageKey, row: ExperienceRow
) -> tuple[ExperienceRow, ...]:
    """Returns the experiences of the same drawing of a task, in order of run and turn."""
    conditions = [f"explore_step={row.explore_step}", f"task={row.taskset}:{row.task_index}"]
    if row.state == "eval":
        conditions.append("kind=eval")
    page = await list_experiences(opened, stage, conditions, page_rows=GROUP_ROWS)
    same = [other for other in page.rows if other.position == row.position]
    return tuple(sorted(same, key=lambda other: (other.run, other.attempt, other.turn)))


def conversation_of(
    group: Iterable[ExperienceRow], row: ExperienceRow
) -> tuple[ExperienceRow, ...]:
    """Returns the turns of one run of a task, in order."""
    turns = [other for other in group if (other.run, other.attempt) == (row.run, row.attempt)]
    return tuple(sorted(turns, key=lambda other: other.turn))


async def whole_experience(
    opened: OpenRun, stage: buffer_pb2.StageKey, experience_id: str
) -> WholeExperience:
    """Returns one experience in full.

    Raises: TrinityError if the id is unknown.
    """
    answer: query_pb2.GetExperienceResponse = await answer_of(
        opened.queries.GetExperience(
            query_pb2.GetExperienceRequest(key=stage, experience_id=experience_id),
            timeout=CALL_SECONDS,
        )
    )
    record = answer.experience
    has_content = record.HasField("content")
    with translate_rpc_errors():
        session = await read_session(opened.queries, stage, record)
    return WholeExperience(
        row=experience_row(record),
        sample=experience_from_proto(record.content) if has_content else None,
        run_seconds=answer.run_seconds,
        metrics=dict(record.metrics) | dict(answer.run_metrics),
        uses=tuple(record.uses),
        changes=tuple(answer.changes),
        why_no_content="" if has_content else record.content_removed or "deleted",
        session=session,
    )


def experience_row(record: query_pb2.ExperienceRecord) -> ExperienceRow:
    """Converts a record."""
    prompt, response = _texts(record)
    eid = record.eid
    return ExperienceRow(
        id=record.id,
        task=f"{record.taskset}:{record.task_index}",
        taskset=record.taskset,
        task_index=record.task_index,
        explore_step=eid.explore_step,
        position=eid.position,
        run=eid.run,
        attempt=eid.attempt,
        turn=eid.step,
        state=state_name(record.state),
        reason=record.reason,
        reward=record.reward if record.HasField("reward") else None,
        shaped_reward=record.shaped_reward if record.HasField("shaped_reward") else None,
        advantage=record.advantage if record.HasField("advantage") else None,
        versions=versions(record),
        num_tokens=record.num_tokens,
        response_length=record.response_length,
        end=finish_reason_name(record.finish_reason),
        train_steps=tuple(use.step for use in record.uses),
        prompt=prompt,
        response=response,
        content=_turn_tokens(record),
        images=tuple(blob_from_proto(b) for b in record.content.blobs if b.name == IMAGE),
    )


def _turn_tokens(record: query_pb2.ExperienceRecord) -> TurnTokens | None:
    if not record.HasField("content") or not record.content.HasField("sequence"):
        return None
    if not record.content.sequence.role_spans:
        return None
    sequence = sequence_from_proto(record.content.sequence)
    return TurnTokens(
        tokens=sequence.tokens,
        prompt_length=sequence.prompt_length,
        spans=sequence.role_spans,
    )


def new_messages(
    before: TurnTokens | None, turn: TurnTokens, decode: Callable[[Sequence[int]], str]
) -> Iterator[ShownMessage]:
    """Yields the messages of a turn that the turn before it did not have.

    The answer of the turn before comes again in the prompt; it is left out where its tokens are
    the same.
    """
    spans = turn.spans[_num_shared(before, turn) :]
    if before is not None and spans and _quotes(turn.slice_of(spans[0]), before, spans[0]):
        spans = spans[1:]
    at = turn.prompt_length
    for span in spans:
        is_policy = span.role == ASSISTANT and span.start >= turn.prompt_length
        yield _message(POLICY if is_policy else span.role, turn.slice_of(span), decode)
        at = max(at, span.end)
    if at < len(turn.tokens):
        yield _message(POLICY, turn.tokens[at:], decode)


def _message(role: str, tokens: IntArray, decode: Callable[[Sequence[int]], str]) -> ShownMessage:
    whole = _IMAGE_MARKS.sub(IMAGE_MARK, decode(tokens.tolist()))
    text = cut_text(whole, MAX_TEXT_CHARS)
    return ShownMessage(role=role, num_tokens=len(tokens), text=text.strip())


def _num_shared(before: TurnTokens | None, turn: TurnTokens) -> int:
    """Returns how many first messages both turns have."""
    if before is None:
        return 0
    number = 0
    for old, new in zip(before.spans, turn.spans, strict=False):
        if old != new or not np.array_equal(before.slice_of(old), turn.slice_of(new)):
            break
        number += 1
    return number


def _quotes(message: IntArray, before: TurnTokens, span: RoleSpan) -> bool:
    """Returns true if a message of a prompt is the answer of the turn before, with its header."""
    answer = before.tokens[before.prompt_length :]
    place = before.prompt_length - span.start
    quoted = message[place : place + len(answer)] if place >= 0 else message[:0]
    return span.role == ASSISTANT and len(answer) > 0 and np.array_equal(quoted, answer)


def _texts(record: query_pb2.ExperienceRecord) -> tuple[str, str]:
    if not record.HasField("content"):
        return "", ""
    content = record.content
    side = content.sequence if content.HasField("sequence") else content.pair.chosen
    return (
        cut_text(side.prompt_text, MAX_TEXT_CHARS),
        cut_text(side.response_text, MAX_TEXT_CHARS),
    )
