"""The session of a run as a tree of calls, with the sample of each."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.api.v1.experience_pb2 import SessionTurn
from trinity.api.v1.query_pb2_grpc import QueryServiceStub
from trinity.data.samples import STREAM_SECONDS, samples
from trinity.run.output import pluralize
from trinity.runtime.origin import NOTHING_BEFORE, chain_turns

if TYPE_CHECKING:  # the first page of Studio loads no workflows
    from trinity.workflows.answers import TurnNode

COLUMNS = ("turn", "after", "weights", "tokens", "sample", "asked", "answer")
ID_DIGITS = 8
MAX_CHARACTERS = 200
"""Of a question and of an answer."""
PRUNED, UNUSED, GONE = "pruned", "in no sample", "content is gone"
_OVERTAKEN = (query_pb2.EXPERIENCE_STATE_SUPERSEDED, query_pb2.EXPERIENCE_STATE_LATE)


@dataclass(frozen=True, slots=True)
class SessionTree:
    """The turns of a session: rows with the cells of `COLUMNS`, whose texts are untrusted.

    A turn stands below the one that it goes on from. Other answers to that one are branches: they
    stand between the two, further to the right.
    """

    summary: str
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class _Place:
    turn: SessionTurn
    before: str
    """The lines of the branches to its left."""
    is_branch: bool = False

    def lines(self, *, goes_on: bool) -> str:
        """Returns the lines down to the turn, and from it to those below."""
        if self.is_branch:
            return self.before[:-2] + "├─" + ("┐" if goes_on else "╴")
        if self.turn.parent_id:
            return self.before + ("│" if goes_on else "╵")
        return self.before + ("╷" if goes_on else "·")


async def read_session(
    queries: QueryServiceStub, key: buffer_pb2.StageKey, record: query_pb2.ExperienceRecord
) -> SessionTree | None:
    """Returns the session of the run that a sample is of; None if no call was over its address."""
    run = record.assignment_id, record.eid.run
    request = query_pb2.GetSessionRequest(key=key, assignment_id=run[0], run=run[1])
    stream = queries.GetSession(request, timeout=STREAM_SECONDS)
    try:
        stored = [turn async for part in stream for turn in part.turns]
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:  # as in a buffer of release 0.1
            raise
        return None
    if not stored:
        return None
    is_eval = record.state == query_pb2.EXPERIENCE_STATE_EVAL
    same_task = query_pb2.ExperienceFilter(
        kind=buffer_pb2.ASSIGNMENT_KIND_EVAL if is_eval else buffer_pb2.ASSIGNMENT_KIND_TRAIN,
        taskset=record.taskset,
        task_index=record.task_index,
        explore_step=record.eid.explore_step,
    )
    found = [other async for other in samples(queries, key, same_task)]
    return session_tree(stored, [o for o in found if (o.assignment_id, o.eid.run) == run])


def session_tree(
    stored: Sequence[SessionTurn], own: Iterable[query_pb2.ExperienceRecord]
) -> SessionTree:
    """Returns the tree of turns, parents first, with the samples of their run."""
    from trinity.workflows.answers import housekeeping_turns

    used = sorted(own, key=lambda record: record.state in _OVERTAKEN)
    turns = _decoded(stored)
    sample_of = _samples_by_digest(turns.values(), used)
    pruned = housekeeping_turns(list(turns.values())) - sample_of.keys()
    numbers = {turn.id: number for number, turn in enumerate(stored, 1)}
    rows, kinds = [], Counter[str]()
    for place, lines in _places(stored):
        turn = turns.get(place.turn.id)
        why = GONE if turn is None else PRUNED if turn.id in pruned else UNUSED
        sample = sample_of.get(place.turn.id, why)
        kinds[sample] += 1
        after = str(numbers.get(place.turn.parent_id, "-"))
        told = ("-", "-", "", "") if turn is None else _told(turn)
        rows.append((f"{lines} {numbers[place.turn.id]}", after, *told[:2], sample, *told[2:]))
    num_paths = len(stored) - len({turn.parent_id for turn in stored if turn.parent_id})
    counted = [f"{kinds[kind]} {kind}" for kind in (PRUNED, UNUSED, GONE) if kinds[kind]]
    rewards = {f"{record.reward:.4g}" for record in used if record.HasField("reward")}
    facts = [pluralize(len(stored), "turn"), pluralize(num_paths, "path"), *counted]
    facts += [f"reward {' and '.join(sorted(rewards))}"] if rewards else []
    return SessionTree(", ".join(facts), tuple(rows))


def _decoded(stored: Iterable[SessionTurn]) -> "dict[str, TurnNode]":
    """Returns the turns whose content is there, and that of all before them."""
    from trinity.workflows.turn_codec import decode_turn

    turns: dict[str, TurnNode] = {}
    for message in stored:
        parent = turns.get(message.parent_id)
        if message.payload and bool(parent) == bool(message.parent_id):
            with suppress(ValueError):
                turns[message.id] = decode_turn(message, parent)
    return turns


def _samples_by_digest(
    turns: "Iterable[TurnNode]", own: Iterable[query_pb2.ExperienceRecord]
) -> dict[str, str]:
    """Returns the sample of each turn, by the digests that the samples keep."""
    contents = {turn.id: own.content_sha256 for turn in turns for own in turn.answer.turns}
    found: dict[str, str] = {}
    for record in own:
        before = NOTHING_BEFORE
        for digest in record.turn_sha256:
            for turn, content in contents.items():
                if turn not in found and chain_turns([content], before) == [digest]:
                    found[turn] = record.id[:ID_DIGITS]
                    break
            before = digest
    return found


def _places(stored: Sequence[SessionTurn]) -> Iterator[tuple[_Place, str]]:
    """Yields the turns from top to bottom, with their lines."""
    children = defaultdict[str, list[SessionTurn]](list)
    for turn in stored:
        children[turn.parent_id].append(turn)
    waiting = [_Place(turn, "") for turn in reversed(children[""])]
    while waiting:
        place = waiting.pop()
        following = children[place.turn.id]
        yield place, place.lines(goes_on=bool(following))
        waiting += [_Place(turn, place.before) for turn in following[:1]]
        branch = place.before + "│ "
        waiting += [_Place(turn, branch, is_branch=True) for turn in reversed(following[1:])]


def _told(turn: "TurnNode") -> tuple[str, str, str, str]:
    answer = turn.answer
    spans = answer.version_spans
    numbers = [f" ({span.end - span.start})" * (len(spans) > 1) for span in spans]
    weights = (f"{span.version}{number}" for span, number in zip(spans, numbers, strict=True))
    return (
        ", ".join(weights) or "-",
        str(answer.sequence.response_length),
        _asked(turn)[:MAX_CHARACTERS],
        answer.response_text[:MAX_CHARACTERS],
    )


def _asked(turn: "TurnNode") -> str:
    """Returns the part of the prompt after the turn before."""
    from trinity.workflows.messages import content_of, role_of

    if turn.messages:
        return " ".join(f"{role_of(own)}: {content_of(own)}" for own in turn.messages)
    before = turn.parent.answer if turn.parent else None
    text = before.prompt_text + before.response_text if before else ""
    return turn.answer.prompt_text.removeprefix(text)
