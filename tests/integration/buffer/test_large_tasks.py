"""Tasks with large rows: work is handed out in answers that fit."""

import json
from pathlib import Path

from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.plans import rollout_plan
from trinity.api.v1 import buffer_pb2 as pb
from trinity.runtime.rpc.limits import MAX_REQUEST_BYTES

MEBIBYTE = 1024 * 1024


def write(file: Path, sizes: list[int]) -> str:
    rows = [{"prompt": f"{n}", "image": "x" * size} for n, size in enumerate(sizes)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


async def test_many_large_tasks_come_in_several_answers(buffer: Buffer, tmp_path: Path) -> None:
    path = write(tmp_path / "large.jsonl", [3 * MEBIBYTE] * 24)
    taskset = {"explorer_input": {"taskset": {"name": "train", "path": path}}}
    await buffer.open(rollout_plan(tmp_path, batch_size=24, **taskset))  # type: ignore[arg-type]
    await buffer.begin()
    await buffer.record(0)
    sizes: list[int] = []
    positions: list[int] = []
    while len(positions) < 24:
        granted = (await buffer.lease(24)).assignments
        assert granted
        sizes.append(sum(len(one.task_json) for one in granted))
        positions += [one.position for one in granted]
    assert positions == list(range(24))
    assert len(sizes) > 2 and max(sizes) < 4 * MEBIBYTE


async def test_work_in_an_answer_is_as_much_as_every_client_takes(
    buffer: Buffer, tmp_path: Path
) -> None:
    """Names and runs count too; small tasks come together, the control."""
    path = write(tmp_path / "mixed.jsonl", [10] * 20 + [MEBIBYTE] * 10)
    taskset = {"explorer_input": {"taskset": {"name": "train", "path": path}}}
    await buffer.open(rollout_plan(tmp_path, batch_size=30, **taskset))  # type: ignore[arg-type]
    await buffer.begin()
    await buffer.record(0)
    answers: list[pb.LeaseAssignmentsResponse] = []
    while sum(len(answer.assignments) for answer in answers) < 30:
        answers.append(await buffer.lease(2**31 - 1))
    assert [len(answer.assignments) for answer in answers] == [23, 3, 3, 1]
    assert all(answer.ByteSize() <= MAX_REQUEST_BYTES for answer in answers)
