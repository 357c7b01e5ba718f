"""Somebody who works on a run while it goes on: gives rewards, takes samples out, brings tasks.

Of some samples the reward never comes.

What is decided about a sample follows from its place alone, so that an experiment that is disturbed
ends as one that is not. What the visitor is told it writes down, for the checks.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby

import grpc
import psycopg

from tests.chaos.aging import age_samples
from tests.chaos.folder import FaultsFolder
from tests.chaos.uploads import Uploader
from tests.support.model_free.reward import LettersReward
from trinity.api.v1 import buffer_pb2
from trinity.api.v1 import query_pb2 as pb
from trinity.api.v1.query_pb2_grpc import QueryServiceStub
from trinity.runtime.rpc.channel import open_channel

REWARDED, EXCLUDED, DELETED, INCLUDED = "rewarded", "excluded", "deleted", "included"
OVERDUE = "overdue"
CALL_SECONDS = 10.0
PAUSE_SECONDS = 0.05
UPLOAD_PAUSE_SECONDS = 0.3
AWAITING = pb.ExperienceFilter(states=[pb.EXPERIENCE_STATE_AWAITING])
REASON = "the visitor's word"


def is_left_out(eid: pb.ExperienceRecord) -> bool:
    """Whether the visitor takes a sample out instead of scoring it."""
    place = eid.eid
    return bool(place.run == 0 and (3 * place.explore_step + place.position) % 7 == 0)


def is_put_back(record: pb.ExperienceRecord) -> bool:
    """Whether the visitor takes a sample out, and puts it back before its group is scored."""
    place = record.eid
    return bool(place.run == 0 and (3 * place.explore_step + place.position) % 7 == 3)


def is_never_scored(record: pb.ExperienceRecord) -> bool:
    """Whether the visitor leaves a sample alone, until the buffer leaves it out."""
    place = record.eid
    return bool(place.run == 1 and (3 * place.explore_step + place.position) % 7 == 5)


@dataclass
class Visitor:
    """One visit to one experiment, until it is cancelled."""

    folder: FaultsFolder
    buffer: str
    database: str
    experiment_id: str
    tenant: str
    stage: str
    _has_deleted: bool = field(default=False)
    _out: dict[str, str] = field(default_factory=dict)
    """Samples that were taken out to be put back, by their assignments."""
    _put_back: set[str] = field(default_factory=set)
    _overdue: set[str] = field(default_factory=set)

    async def stay(self) -> None:
        """Judge what waits, delete a sample, bring tasksets, again and again."""
        async with asyncio.TaskGroup() as acts, open_channel(self.buffer) as channel:
            stub = QueryServiceStub(channel)
            acts.create_task(_again_and_again(lambda: self._judge(stub), PAUSE_SECONDS))
            acts.create_task(_again_and_again(lambda: self._delete(stub), PAUSE_SECONDS))
            uploader = Uploader(
                folder=self.folder,
                buffer=self.buffer,
                database=self.database,
                tenant=self.tenant,
                experiment_id=self.experiment_id,
            )
            await _again_and_again(uploader.bring, UPLOAD_PAUSE_SECONDS)

    @property
    def _key(self) -> buffer_pb2.StageKey:
        return buffer_pb2.StageKey(
            tenant=self.tenant, experiment_id=self.experiment_id, stage=self.stage
        )

    async def _judge(self, stub: QueryServiceStub) -> None:
        records = [one async for one in self._list(stub, AWAITING)]
        for _, own in groupby(records, key=lambda one: one.assignment_id):
            group = list(own)
            if await self._is_unsettled(stub, group):
                continue
            if left_out := [one.id for one in group if is_left_out(one)]:
                await self._exclude(stub, left_out)
            await self._let_wait([one.id for one in group if is_never_scored(one)])
            if scored := [one for one in group if not (is_left_out(one) or is_never_scored(one))]:
                await self._reward(stub, scored)

    async def _is_unsettled(
        self, stub: QueryServiceStub, group: Sequence[pb.ExperienceRecord]
    ) -> bool:
        """Take a sample out and put it back; the group is scored the next time, when it is there.

        Whoever dies between the two, both are done again.
        """
        assignment, place = group[0].assignment_id, group[0].eid
        if (3 * place.explore_step + place.position) % 7 != 3 or assignment in self._put_back:
            return False
        for one in group:
            if is_put_back(one):
                self._out[assignment] = one.id
        if assignment in self._out:
            await self._take_out_and_back(stub, self._out[assignment])
            self._put_back.add(assignment)
        return True

    async def _take_out_and_back(self, stub: QueryServiceStub, sample: str) -> None:
        chosen = pb.ExperienceFilter(experience_ids=[sample])
        out = pb.ExcludeExperiencesRequest(key=self._key, filter=chosen, reason=REASON)
        await stub.ExcludeExperiences(out, timeout=CALL_SECONDS)
        back = pb.IncludeExperiencesRequest(key=self._key, filter=chosen)
        await stub.IncludeExperiences(back, timeout=CALL_SECONDS)
        self._note(INCLUDED, ids=[sample])

    async def _let_wait(self, ids: Sequence[str]) -> None:
        """Until nobody waits for their rewards any more."""
        if new := [one for one in ids if one not in self._overdue]:
            await age_samples(self.database, self.experiment_id, new)
            self._overdue.update(new)
            self._note(OVERDUE, ids=new)

    async def _list(
        self, stub: QueryServiceStub, wanted: pb.ExperienceFilter, limit: int = 0
    ) -> AsyncIterator[pb.ExperienceRecord]:
        request = pb.ListExperiencesRequest(
            key=self._key, filter=wanted, with_content=True, limit=limit
        )
        async for page in stub.ListExperiences(request, timeout=CALL_SECONDS):
            for record in page.experiences:
                yield record

    async def _reward(self, stub: QueryServiceStub, records: Sequence[pb.ExperienceRecord]) -> None:
        rewards = {one.id: _score(one.content.sequence.response_text) for one in records}
        feedback = [pb.Feedback(experience_id=one, reward=own) for one, own in rewards.items()]
        request = pb.GiveFeedbackRequest(key=self._key, feedback=feedback)
        answer = await stub.GiveFeedback(request, timeout=CALL_SECONDS)
        if not answer.refused:
            are_new = answer.num_set == len(rewards)
            self._note(REWARDED, rewards=rewards, are_new=are_new)

    async def _exclude(self, stub: QueryServiceStub, ids: list[str]) -> None:
        request = pb.ExcludeExperiencesRequest(
            key=self._key, filter=pb.ExperienceFilter(experience_ids=ids), reason=REASON
        )
        answer = await stub.ExcludeExperiences(request, timeout=CALL_SECONDS)
        if answer.num_excluded == len(ids):
            self._note(EXCLUDED, ids=ids)

    async def _delete(self, stub: QueryServiceStub) -> None:
        """The content of one sample of the first batch, as soon as nobody may train it again."""
        if self._has_deleted:
            return
        first = pb.ExperienceFilter(train_step=1)
        async for record in self._list(stub, first, limit=1):
            wanted = pb.ExperienceFilter(experience_ids=[record.id])
            request = pb.DeleteExperiencesRequest(key=self._key, filter=wanted, reason=REASON)
            await stub.DeleteExperiences(request, timeout=CALL_SECONDS)
            self._note(DELETED, ids=[record.id])
            self._has_deleted = True

    def _note(self, journal: str, **line: object) -> None:
        self.folder.log(journal, {"experiment_id": self.experiment_id, **line})


def _score(response: str) -> float:
    return sum(LettersReward()(response=response).values())


async def _again_and_again(act: Callable[[], Awaitable[None]], pause_seconds: float) -> None:
    """What does not work while something is dead, or too early, is done the next time."""
    while True:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, psycopg.OperationalError):
            await act()
        await asyncio.sleep(pause_seconds)
