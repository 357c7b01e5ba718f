"""A walk says what it could not see, and names each record that is not as it was."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tests.support import origin_by_hand as by_hand
from trinity.api.v1 import buffer_pb2
from trinity.api.v1 import query_pb2 as pb
from trinity.errors import NotFound
from trinity.inspect.origin import OriginReport, OriginWalk

TEXT = '{"a": 1}'
ROW = by_hand.sha256_of(TEXT.encode())
TURNS = [by_hand.sha256_of(b"first"), by_hand.sha256_of(b"last")]
BATCH = by_hand.batch([ROW, TURNS[-1]])


def head(step: int, before: bytes = by_hand.ZEROS) -> pb.StepHead:
    lineage = by_hand.version(before, BATCH)
    return pb.StepHead(
        step=step,
        rows_sha256=BATCH,
        before_sha256=before,
        lineage_sha256=lineage,
        weights_after=buffer_pb2.PublishedVersion(version=step, lineage_sha256=lineage),
    )


@dataclass
class Record:
    """What a buffer tells of a stage whose steps have a row of data and a sample each."""

    heads: dict[int, pb.StepHead]
    text: str = TEXT
    sample: pb.ExperienceRecord = field(
        default_factory=lambda: pb.ExperienceRecord(
            id="s", turn_sha256=TURNS, content_removed="removed as older than all that is kept"
        )
    )

    async def GetStep(
        self, request: pb.GetStepRequest, **_: object
    ) -> AsyncIterator[pb.GetStepResponse]:
        if request.step not in self.heads:
            raise NotFound(f"step {request.step} has no batch")
        yield pb.GetStepResponse(head=self.heads[request.step])
        uses = [pb.BatchUse(position=0, row_sha256=ROW)]
        uses.append(pb.BatchUse(position=1, row_sha256=TURNS[-1]))
        rows = [pb.StepRow(use=uses[0], row_json=self.text)]
        rows.append(pb.StepRow(use=uses[1], experience=self.sample))
        yield pb.GetStepResponse(rows=pb.StepRows(rows=rows))

    async def ListExperiences(
        self, request: pb.ListExperiencesRequest, **_: object
    ) -> AsyncIterator[pb.ListExperiencesResponse]:
        assert list(request.filter.experience_ids) == ["s"]
        yield pb.ListExperiencesResponse(experiences=[self.sample])

    async def walked(self, version: int) -> OriginReport:
        key = buffer_pb2.StageKey(stage="rft")
        walk = OriginWalk(queries=cast(Any, self), key=key, job_dir=None)
        return await walk.walk_from(version)


async def test_removed_contents_and_what_is_not_here_are_notes() -> None:
    first = head(3)
    report = await Record({3: first, 4: head(4, first.lineage_sha256)}).walked(4)
    assert report.faults == []
    assert report.notes == [
        "no files of the weights were looked at",
        "steps up to 2 are another stage's: verify them there",
    ]
    shown = report.lines(4)
    assert shown[0] == "steps 3 to 4: 4 rows with 4 turns: 2 matches, 2 removed"
    assert shown[1] == f"step 4, row 1, sample s: removed, its digest {TURNS[-1].hex()}"
    with pytest.raises(NotFound):
        await Record({3: first}).walked(4)


async def test_steps_and_trainers_of_an_earlier_release_are_named() -> None:
    earlier, silent = pb.StepHead(step=1), head(2)
    silent.weights_after.lineage_sha256 = b""
    report = await Record({1: earlier, 2: silent}).walked(2)
    assert report.faults == []
    assert report.notes[0] == "version 2: its trainer said nothing of its batches"
    assert report.notes[-1] == "steps up to 1 have no digests: an earlier release recorded them"


async def test_a_row_of_data_and_a_content_that_differ_are_named() -> None:
    record = Record({1: head(1)}, text='{"a": 2}')
    record.sample.content.sequence.prompt_length = 1
    report = await record.walked(1)
    assert [row["state"] for row in report.rows] == ["differs", "differs"]
    assert report.faults[0].startswith("step 1, row 0: its data: ")
    assert report.faults[1].startswith("step 1, row 1, sample s: its content is damaged: ")
    assert report.lines(1)[-1] == f"differs: {report.faults[1]}"
