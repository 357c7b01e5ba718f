"""Groups go through Data-Juicer each for itself: what one of them does wrong, no other pays for."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.integration.buffer.calls import CALL_SECONDS
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.plans import BATCH_SIZE, rollout_plan, with_operators
from tests.support.data_juicer_server import LongEnough, served
from trinity.api.v1 import buffer_pb2 as pb
from trinity.types import JsonValue
from trinity.user_code.data_juicer import server

POISON = "1/0/"
"""What responses of the first group begin with."""


class Poisoned(LongEnough):
    """Fails as an operator may that cannot read a text."""

    @classmethod
    def from_request(cls, _: Mapping[str, Any]) -> "Poisoned":
        return cls(least=0)

    def apply_operators(self, stream: bytes) -> tuple[bytes, dict[str, float]]:
        texts = pa.ipc.open_stream(stream).read_all().column("text").to_pylist()
        if any(text.startswith(POISON) for text in texts):
            raise ValueError("no operator can read this")
        return super().apply_operators(stream)


async def test_a_group_that_data_juicer_fails_on_takes_no_other_with_it(
    buffer: Buffer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "OperatorSession", Poisoned)
    plan = rollout_plan(tmp_path, total_steps=1, max_refill_rounds=0)
    with served(server.SessionStore()) as url:
        arguments: dict[str, JsonValue] = {"server_url": url, "operators": []}
        await buffer.open(with_operators(plan, "data_juicer", data_juicer=arguments))
        await buffer.begin()
        await buffer.record(0)
        await buffer.finish_all((await buffer.lease()).assignments)
        async with asyncio.timeout(CALL_SECONDS):
            head = pb.BatchHead()
            while head.state != pb.BatchHead.STATE_READY:
                head, rows = await buffer.batch(1)
    assert {row.experience.eid.position for row in rows} == set(range(1, BATCH_SIZE))
    [notice] = [one.notice.text for one in await buffer.events("notice") if one.HasField("notice")]
    assert "the samples of 1 tasks are left out, operator data_juicer" in notice
    assert "answers 500: ValueError: no operator can read this" in notice
