"""The buffer as a trainer sees it."""

import uuid

from tests.integration.buffer.calls import CALL_SECONDS, WAIT_SECONDS, Calls
from trinity.api.v1 import buffer_pb2 as pb

TOKENS = pb.TokenValues(logprobs=b"\0\0\x80\xbf", advantages=b"\0\0\x80\x3e")
"""-1 and 0.25, of one token."""


class TrainerSide(Calls):
    """Incarnations, batches, checkpoints."""

    async def begin(self) -> pb.BeginIncarnationResponse:
        request = pb.BeginIncarnationRequest(key=self.pb_key, trainer_id=str(uuid.uuid4()))
        answer: pb.BeginIncarnationResponse = await self.stub.BeginIncarnation(
            request, timeout=CALL_SECONDS
        )
        self.incarnation = answer.incarnation
        return answer

    async def record(
        self, version: int, weights: bytes = b"\x01" * 32, blake3: bytes = b""
    ) -> list[int]:
        request = pb.RecordVersionRequest(
            key=self.pb_key,
            version=pb.PublishedVersion(
                version=version,
                incarnation=self.incarnation,
                weights_sha256=weights,
                weights_blake3=blake3,
                lineage_sha256=b"\x06" * 32,
            ),
        )
        answer = await self.stub.RecordVersion(request, timeout=CALL_SECONDS)
        return list(answer.pinned_versions)

    async def batch(
        self, step: int, *, wait_seconds: float = WAIT_SECONDS, takes_incomplete: bool = False
    ) -> tuple[pb.BatchHead, list[pb.BatchRow]]:
        request = pb.GetBatchRequest(
            key=self.pb_key,
            incarnation=self.incarnation,
            step=step,
            wait_seconds=wait_seconds,
            takes_incomplete=takes_incomplete,
        )
        head, rows = pb.BatchHead(), []
        async for message in self.stub.GetBatch(request, timeout=CALL_SECONDS):
            if message.WhichOneof("part") == "head":
                head = message.head
            else:
                rows += list(message.rows.rows)
        return head, rows

    async def report(self, step: int, **metrics: float) -> pb.ReportStepResponse:
        request = pb.ReportStepRequest(
            key=self.pb_key,
            incarnation=self.incarnation,
            step=step,
            metrics=metrics,
            rows=[
                pb.RowFeedback(position=0, mean_ratio=1.5, advantage=0.25, tokens=TOKENS),
            ],
        )
        answer: pb.ReportStepResponse = await self.stub.ReportStep(request, timeout=CALL_SECONDS)
        return answer

    async def checkpoint(self, step: int) -> pb.CommitCheckpointResponse:
        request = pb.CommitCheckpointRequest(
            key=self.pb_key,
            checkpoint=pb.Checkpoint(
                step=step,
                incarnation=self.incarnation,
                path=f"/checkpoints/step-{step}-{self.incarnation}",
                manifest_sha256=b"\x02" * 32,
                lineage_sha256=b"\x05" * 32,
            ),
        )
        answer: pb.CommitCheckpointResponse = await self.stub.CommitCheckpoint(
            request, timeout=CALL_SECONDS
        )
        return answer

    async def finish(self, step: int, wait_seconds: float = 0.0) -> pb.FinishTrainingResponse:
        request = pb.FinishTrainingRequest(
            key=self.pb_key, incarnation=self.incarnation, step=step, wait_seconds=wait_seconds
        )
        answer: pb.FinishTrainingResponse = await self.stub.FinishTraining(
            request, timeout=CALL_SECONDS
        )
        return answer
